//! A linear model with eight-bit weights: how it scores a text, and how it is stored.

use std::borrow::Cow;
use std::sync::OnceLock;

use surefoot_core::fault::FaultKind;

use super::calibration::Calibration;
use super::features::Family;
use super::reading::Reading;
use super::vocabulary::{SLOTS, Vocabulary};

/// The kinds that the model tells apart: all but [`FaultKind::StateLost`], which no message of
/// another program means.
pub const KINDS: [FaultKind; 15] = [
    FaultKind::OutOfMemory,
    FaultKind::DeviceMismatch,
    FaultKind::DtypeMismatch,
    FaultKind::UnsupportedDtype,
    FaultKind::UnsupportedOp,
    FaultKind::PlaceholderStorage,
    FaultKind::DeviceLost,
    FaultKind::DriverOrInit,
    FaultKind::KernelCompile,
    FaultKind::CommandBuffer,
    FaultKind::ShapeMismatch,
    FaultKind::Numeric,
    FaultKind::DataLoading,
    FaultKind::ModelLoading,
    FaultKind::NotDeviceRelated,
];

/// One score per kind, in the order of [`KINDS`].
pub type Scores = [f32; KINDS.len()];

/// Bytes per feature: a weight for each kind, then the feature's rarity.
pub(super) const ROW: usize = KINDS.len() + 1;

/// "Surefoot linear model, format 2".
const MAGIC: &[u8; 4] = b"SFL2";
/// Magic; scale; a bias for each kind; temperature and two offsets.
const HEADER: usize = 4 + 4 + 4 * KINDS.len() + 4 * 3;

/// The bytes are no model of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadModel;

impl std::fmt::Display for BadModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "these bytes are no model of this version: train it again with `cargo run --release -p surefoot-explain --example learned_stage -- train`",
        )
    }
}

impl std::error::Error for BadModel {}

/// A trained model with its calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The features that training saw often enough.
    pub(super) vocabulary: Vocabulary,
    /// [`SLOTS`] rows of [`ROW`] bytes. A weight is already multiplied by the feature's rarity.
    pub(super) rows: Cow<'static, [u8]>,
    /// What one step of a weight is worth.
    pub(super) scale: f32,
    pub(super) bias: Scores,
    /// How scores become probabilities.
    pub calibration: Calibration,
}

impl Model {
    /// The model in this library; `None` if the file was not written by this version, which a test
    /// rules out.
    pub fn embedded() -> Option<&'static Self> {
        static MODEL: OnceLock<Option<Model>> = OnceLock::new();
        MODEL
            .get_or_init(|| Self::from_static(include_bytes!("../../model/weights.bin")).ok())
            .as_ref()
    }

    /// A model from what [`Model::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadModel> {
        let rest = bytes.get(HEADER..).unwrap_or_default();
        let (vocabulary, rows) = rest.split_at_checked(SLOTS).ok_or(BadModel)?;
        Self::read(bytes, Cow::Owned(vocabulary.to_vec()), Cow::Owned(rows.to_vec()))
    }

    fn from_static(bytes: &'static [u8]) -> Result<Self, BadModel> {
        let rest = bytes.get(HEADER..).unwrap_or_default();
        let (vocabulary, rows) = rest.split_at_checked(SLOTS).ok_or(BadModel)?;
        Self::read(bytes, Cow::Borrowed(vocabulary), Cow::Borrowed(rows))
    }

    fn read(
        bytes: &[u8],
        vocabulary: Cow<'static, [u8]>,
        rows: Cow<'static, [u8]>,
    ) -> Result<Self, BadModel> {
        let header = bytes.strip_prefix(MAGIC).ok_or(BadModel)?;
        let vocabulary = Vocabulary::from_bytes(vocabulary).ok_or(BadModel)?;
        if rows.len() != SLOTS * ROW {
            return Err(BadModel);
        }
        let mut numbers = header
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let mut next = || numbers.next().filter(|number| number.is_finite()).ok_or(BadModel);
        let scale = next()?;
        let mut bias = Scores::default();
        for bias in &mut bias {
            *bias = next()?;
        }
        let calibration =
            Calibration { temperature: next()?, unknown_offset: next()?, hint_offset: next()? };
        Ok(Self { vocabulary, rows, scale, bias, calibration })
    }

    /// The model as a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Calibration { temperature, unknown_offset, hint_offset } = self.calibration;
        let mut bytes = MAGIC.to_vec();
        let numbers = [self.scale].into_iter().chain(self.bias);
        for number in numbers.chain([temperature, unknown_offset, hint_offset]) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend_from_slice(self.vocabulary.as_bytes());
        bytes.extend_from_slice(&self.rows);
        bytes
    }

    /// The scores of a text, or `None` where it has no feature that training saw.
    pub fn scores(&self, text: &str) -> Option<Scores> {
        self.scores_of(&Reading::new(self, text))
    }

    pub(super) fn scores_of(&self, reading: &Reading) -> Option<Scores> {
        let mut sums = [[0_i32; KINDS.len()]; Family::COUNT];
        let mut squares = [0_u32; Family::COUNT];
        for feature in reading.features.iter().filter(|feature| feature.is_first) {
            let slot = feature.slot as usize;
            let row = &self.rows[slot * ROW..(slot + 1) * ROW];
            for (sum, &weight) in sums[feature.family as usize].iter_mut().zip(row) {
                *sum += i32::from(weight as i8);
            }
            let rarity = u32::from(row[ROW - 1]);
            squares[feature.family as usize] += rarity * rarity;
        }
        if squares == [0; Family::COUNT] {
            return None;
        }
        let mut scores = self.bias;
        for (sums, squares) in sums.into_iter().zip(squares) {
            let factor = self.scale / (squares.max(1) as f32).sqrt();
            for (score, sum) in scores.iter_mut().zip(sums) {
                *score += sum as f32 * factor;
            }
        }
        Some(scores)
    }

    /// What a feature says for one kind against another.
    pub(super) fn weight_between(&self, slot: usize, kind: usize, other: usize) -> i32 {
        let row = &self.rows[slot * ROW..(slot + 1) * ROW];
        i32::from(row[kind] as i8) - i32::from(row[other] as i8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_model_can_be_read_and_is_small() {
        let model = Model::embedded().expect("the embedded file is a model of this version");
        let bytes = model.to_bytes();
        assert!(bytes.len() < 1_000_000, "{} bytes", bytes.len());
        assert_eq!(Model::from_bytes(&bytes).as_ref(), Ok(model));
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(Model::from_bytes(b""), Err(BadModel));
        let mut bytes = Model::embedded().expect("a model").to_bytes();
        bytes.pop();
        assert_eq!(Model::from_bytes(&bytes), Err(BadModel));
        bytes.push(0);
        bytes[0] = b'x';
        assert_eq!(Model::from_bytes(&bytes), Err(BadModel));
    }

    #[test]
    fn every_kind_but_a_lost_state_is_told_apart() {
        let all = FaultKind::ALL.iter().filter(|&&kind| kind != FaultKind::StateLost);
        assert!(all.eq(KINDS.iter()));
    }
}
