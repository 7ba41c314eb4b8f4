//! A text as a model reads it: the known features with their places. Read once, for the scores and for the evidence.

use std::ops::Range;

use super::features::{Family, Normalised};
use super::model::Model;
use super::vocabulary::SLOTS;

/// A known feature in a text.
pub(super) struct Feature {
    pub(super) family: Family,
    pub(super) slot: u32,
    /// Where it stands in the normalised text.
    start: u32,
    end: u32,
    /// Whether it occurs here for the first time: only then it counts.
    pub(super) is_first: bool,
}

impl Feature {
    pub(super) fn span(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The text and its known features.
pub(crate) struct Reading {
    pub(super) text: Normalised,
    pub(super) features: Vec<Feature>,
}

impl Reading {
    pub(crate) fn new(model: &Model, text: &str) -> Self {
        let text = Normalised::new(text);
        let mut seen = [0_u64; SLOTS.div_ceil(64)];
        let mut features = Vec::with_capacity(4 * text.bytes.len());
        text.features(|family, hash, span| {
            if let Some(slot) = model.vocabulary.find(hash) {
                let bit = 1 << (slot % 64);
                let is_first = seen[slot / 64] & bit == 0;
                seen[slot / 64] |= bit;
                let (start, end) = (span.start as u32, span.end as u32);
                features.push(Feature { family, slot: slot as u32, start, end, is_first });
            }
        });
        Self { text, features }
    }
}
