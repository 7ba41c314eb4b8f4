//! What the data of a run means: stored in its checkpoints, so that a model can be tested and
//! used without the data that it was trained on.
//!
//! [`open`](super::open) learns a description from data to train on; [`open_as`](super::open_as)
//! and prediction read other data in the terms of a stored one: the same classes under the same
//! numbers, the same columns in the same order, the same vocabulary and normalisation.

use serde::{Deserialize, Serialize};

use super::{Form, Vocabulary};

/// What the inputs and outputs of a model mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DataDescription {
    /// What a sample looks like.
    pub form: Form,
    /// The names of the classes, in the order of the model's outputs; empty for text and numbers.
    pub classes: Vec<String>,
    /// The names of a table's columns, in the order of the model's inputs; empty for other data.
    pub columns: Vec<String>,
    /// The name of the column that is predicted; none if the data is no table.
    pub label: Option<String>,
    /// How text becomes tokens.
    pub vocabulary: Option<Vocabulary>,
    /// Applied to each input channel before the model sees it.
    pub normalisation: Normalisation,
    /// Applied to the numbers that are predicted, in regression: the model learns the result.
    pub target: Option<Normalisation>,
}

/// Brings channels to mean 0 and standard deviation 1: `(value - mean) * scale`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// The mean of each channel.
    #[serde(with = "exact")]
    pub mean: Vec<f32>,
    /// One divided by the standard deviation of each channel.
    #[serde(with = "exact")]
    pub scale: Vec<f32>,
}

impl Normalisation {
    /// Leaves `channels` channels as they are.
    pub fn identity(channels: usize) -> Self {
        Self { mean: vec![0.0; channels], scale: vec![1.0; channels] }
    }

    /// The normalised value.
    pub fn apply(&self, channel: usize, value: f32) -> f32 {
        (value - self.mean[channel]) * self.scale[channel]
    }

    /// The value that [`apply`](Self::apply) made `normalised` of.
    pub fn undo(&self, channel: usize, normalised: f32) -> f32 {
        normalised / self.scale[channel] + self.mean[channel]
    }
}

impl DataDescription {
    /// In which ways data differs from what this describes, in words; none if it is the same.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.form != other.form {
            found.push(format!("samples are {}, not {}", other.form, self.form));
        }
        if self.classes != other.classes {
            let (one, two) = (self.classes.join(", "), other.classes.join(", "));
            found.push(format!("the classes are {two}, not {one}"));
        }
        if self.columns != other.columns || self.label != other.label {
            let (one, two) = (self.columns.join(", "), other.columns.join(", "));
            found.push(format!("the columns are {two}, not {one}"));
        }
        if self.vocabulary != other.vocabulary {
            found.push("the vocabulary is another".to_owned());
        }
        let values = (&self.normalisation, &self.target) != (&other.normalisation, &other.target);
        if values && found.is_empty() {
            found
                .push("its values have other means and deviations, so it is other data".to_owned());
        }
        found
    }
}

/// Floats as their shortest decimal texts: `serde_json` may read a number back one bit off,
/// and a resumed run must see the same inputs to the bit.
mod exact {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(numbers: &[f32], to: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        texts.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn normalisation_survives_json_to_the_bit(mean in prop::collection::vec(-1e30f32..1e30, 1..5)) {
            let written = Normalisation { scale: mean.iter().map(|m| 1.0 / (m.abs() + 1e-9)).collect(), mean };
            let text = serde_json::to_string(&written).unwrap();
            prop_assert_eq!(serde_json::from_str::<Normalisation>(&text).unwrap(), written);
        }
    }

    #[test]
    fn undoing_gives_the_value_back() {
        let normalisation = Normalisation { mean: vec![10.0], scale: vec![0.5] };
        assert_eq!(normalisation.apply(0, 14.0), 2.0);
        assert_eq!(normalisation.undo(0, 2.0), 14.0);
    }
}
