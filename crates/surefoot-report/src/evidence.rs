//! The HTML page of a comparison of two models: the verdict, the evidence after each challenge, and
//! the distance at each site.

use std::io::{self, Write};

use serde::Serialize;

use crate::page::{self, Connect, Kind};

/// The verdict of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The models are the same within tolerance.
    Same,
    /// The models differ.
    Different,
    /// The challenges ran out first.
    Undecided,
}

/// A comparison with its evidence.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// The title.
    pub title: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason, in one or two sentences.
    pub summary: String,
    /// The largest probability of a false DIFFERENT.
    pub alpha: f64,
    /// The largest probability of a false SAME.
    pub beta: f64,
    /// The evidence after each challenge, in order.
    pub challenges: Vec<Challenge>,
    /// The number of challenges that the verdict needed.
    pub challenges_used: usize,
    /// The sites, from the first layer to the last.
    pub sites: Vec<Site>,
    /// Further facts as name and value: hashes, the policy, the root of the transcript.
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
    /// Its name.
    pub name: String,
    /// The distance between the models here, over all challenges.
    pub distance: f64,
    /// The distance that numerical noise alone can cause.
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
