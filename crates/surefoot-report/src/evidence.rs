//! The page of a comparison of two models: the verdict, how the evidence grew with each
//! challenge, and how far each site is from the other model's.

use std::io::{self, Write};

use serde::Serialize;

use crate::page::{self, Connect, Kind};

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The models are the same within tolerance.
    Same,
    /// They are not.
    Different,
    /// The challenges ran out first.
    Undecided,
}

/// A comparison with its evidence.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// What the reader knows it by.
    pub title: String,
    /// What was decided.
    pub verdict: Verdict,
    /// Why, in a sentence or two.
    pub summary: String,
    /// How often DIFFERENT may be wrong.
    pub alpha: f64,
    /// How often SAME may be wrong.
    pub beta: f64,
    /// The evidence after each challenge, in order.
    pub challenges: Vec<Challenge>,
    /// How many of them the verdict needed.
    pub challenges_used: usize,
    /// The sites, from the first layer to the last.
    pub sites: Vec<Site>,
    /// Anything else worth a line: hashes, the policy, the root of the transcript.
    pub facts: Vec<(String, String)>,
}

/// The evidence after one more challenge.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Challenge {
    /// The decimal logarithm of the e-value against "same within tolerance": past `log10(1/α)`
    /// the models are different.
    pub against_same: f64,
    /// The decimal logarithm of the e-value against "different by at least δ": past `log10(1/β)`
    /// the models are the same.
    pub against_different: f64,
}

/// One site: the boundary of a block.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// What it is called.
    pub name: String,
    /// How far the models are apart here, over all challenges.
    pub distance: f64,
    /// How far noise alone would bring them.
    pub tolerance: f64,
    /// The share of sketch bits that differ.
    pub bits: f64,
    /// Whether it is the first one that diverges.
    pub first_to_diverge: bool,
}

impl Evidence {
    /// Writes the page.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        page::write(out, Kind::Evidence, Connect::Nowhere, &self.title, self)
    }
}
