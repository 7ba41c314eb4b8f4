//! In what form a fingerprint's model had its weights, where not as its files have them.

use std::fmt;

use serde::{Deserialize, Serialize};
use surefoot_models::ModelError;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_quant::BlockFormat;

const ROUNDED: &str = "rounded to ";

/// In what form weights were multiplied with. Files have its text: `q8`, `rounded to F32+Q4_0`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum WeightForm {
    /// Quantised while they were loaded.
    Quantized(WeightChoice),
    /// Rounded to the formats in which another model has its weights, by their names.
    RoundedTo(Vec<String>),
}

impl WeightForm {
    /// The common name of the form: `q4`, `q8`, or `quantised` for others.
    pub fn common_name(&self) -> &'static str {
        use BlockFormat::{Q4_0, Q4_1, Q4_K, Q8_0};
        let has = |formats: &[String], wanted: &[BlockFormat]| {
            formats
                .iter()
                .filter_map(|name| BlockFormat::named(name))
                .any(|it| wanted.contains(&it))
        };
        match self {
            Self::Quantized(choice) => choice.as_str(),
            Self::RoundedTo(formats) if has(formats, &[Q4_0, Q4_1, Q4_K]) => "q4",
            Self::RoundedTo(formats) if has(formats, &[Q8_0]) => "q8",
            Self::RoundedTo(_) => "quantised",
        }
    }
}

/// Whether programs differ in how they round to one of these formats: they agree on those with a scale
/// for 32 numbers, but search for the scales of the others in ways of their own.
pub(crate) fn is_ambiguous<'a>(mut dtypes: impl Iterator<Item = &'a String>) -> bool {
    dtypes.any(|name| BlockFormat::named(name).is_some_and(BlockFormat::is_k_quant))
}

impl fmt::Display for WeightForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantized(choice) => choice.fmt(f),
            Self::RoundedTo(formats) => write!(f, "{ROUNDED}{}", formats.join("+")),
        }
    }
}

impl From<WeightForm> for String {
    fn from(form: WeightForm) -> Self {
        form.to_string()
    }
}

impl TryFrom<String> for WeightForm {
    type Error = ModelError;

    fn try_from(text: String) -> Result<Self, ModelError> {
        match text.strip_prefix(ROUNDED) {
            Some(formats) => Ok(Self::RoundedTo(formats.split('+').map(str::to_owned).collect())),
            None => text.parse().map(Self::Quantized),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_files_are_forms_with_common_names() {
        for (text, name) in [
            ("q8", "q8"),
            ("q4", "q4"),
            ("rounded to F32+Q4_K+Q6_K", "q4"),
            ("rounded to F32+Q8_0", "q8"),
            ("rounded to F32+Q5_1", "quantised"),
        ] {
            let form = WeightForm::try_from(text.to_owned()).unwrap();
            assert_eq!((form.common_name(), form.to_string().as_str()), (name, text));
        }
        assert!(WeightForm::try_from("q5".to_owned()).is_err());
        let dtypes =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(is_ambiguous(dtypes(&["F32", "Q6_K"]).iter()));
        assert!(!is_ambiguous(dtypes(&["F32", "Q4_0", "Q8_0"]).iter()));
    }
}
