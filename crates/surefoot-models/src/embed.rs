//! Embeddings: one vector a text, pooled from the last hidden state and normalised.
//!
//! How a folder pools is in `modules.json` and `1_Pooling/config.json`, as sentence encoders
//! are published.

use std::path::Path;

use crate::error::ModelError;
use crate::folder::settings::Settings;
use crate::run::batch::{Rectangle, TokenBatch};
use crate::run::model::Model;
use crate::run::output::{Logits, Rows, Want};

/// What a pass of an embedding keeps.
pub const WANT: Want = Want { logits: Logits::None, hidden: false, last_hidden: true };

/// How the states of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one's.
    Cls,
    /// The largest of each dimension.
    Max,
    /// The last one's.
    Last,
}

/// What a folder says of how its embeddings are made.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// How tokens are pooled.
    pub pooling: Pooling,
    /// The most tokens of a text.
    pub max_tokens: Option<usize>,
}

impl Recipe {
    /// Reads the recipe of `folder`; the mean where it has none.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let path = pooling_folder(folder)?;
        let config = folder.join(path).join("config.json");
        let pooling =
            if config.exists() { pooling(&Settings::open(&config)?)? } else { Pooling::Mean };
        let sentence = folder.join("sentence_bert_config.json");
        let max_tokens = if sentence.exists() {
            Settings::open(&sentence)?.count("max_seq_length", 1..=1 << 20)?
        } else {
            None
        };
        Ok(Self { pooling, max_tokens })
    }
}

/// The folder of the pooling module, and a refusal of modules that would change the result.
fn pooling_folder(folder: &Path) -> Result<String, ModelError> {
    const USUAL: &str = "1_Pooling";
    let file = folder.join("modules.json");
    if !file.exists() {
        return Ok(USUAL.to_owned());
    }
    let json = crate::folder::read_bounded(&file, 1 << 20)?;
    let modules: Vec<serde_json::Value> = serde_json::from_slice(&json)
        .map_err(|error| ModelError::file(&file, format!("can't be read: {error}")))?;
    let mut found = USUAL.to_owned();
    for module in &modules {
        let text = |key: &str| module.get(key).and_then(serde_json::Value::as_str).unwrap_or("");
        match text("type").rsplit('.').next().unwrap_or("") {
            "Transformer" | "Normalize" => {}
            "Pooling" => {
                let path = text("path");
                if path.contains(['/', '\\']) || path.starts_with("..") {
                    return Err(ModelError::config(&file, "path", "leads out of the folder"));
                }
                found = path.to_owned();
            }
            other => {
                return Err(ModelError::config(
                    &file,
                    "type",
                    format!("names the module '{other}', which is not supported"),
                ));
            }
        }
    }
    Ok(found)
}

fn pooling(settings: &Settings) -> Result<Pooling, ModelError> {
    if let Some(mode) = settings.text("pooling_mode")? {
        return match mode {
            "mean" => Ok(Pooling::Mean),
            "cls" => Ok(Pooling::Cls),
            "max" => Ok(Pooling::Max),
            "lasttoken" => Ok(Pooling::Last),
            other => {
                Err(settings
                    .problem("pooling_mode", format!("is '{other}', which is not supported")))
            }
        };
    }
    let mut chosen = None;
    for (key, pooling) in [
        ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
        ("pooling_mode_cls_token", Some(Pooling::Cls)),
        ("pooling_mode_max_tokens", Some(Pooling::Max)),
        ("pooling_mode_lasttoken", Some(Pooling::Last)),
        ("pooling_mode_mean_sqrt_len_tokens", None),
        ("pooling_mode_weightedmean_tokens", None),
    ] {
        if settings.flag(key)?.unwrap_or(false) {
            let pooling =
                pooling.ok_or_else(|| settings.problem(key, "is set, which is not supported"))?;
            if chosen.replace(pooling).is_some() {
                return Err(settings.problem(key, "is set beside another way of pooling"));
            }
        }
    }
    Ok(chosen.unwrap_or(Pooling::Mean))
}

impl Model {
    /// One vector of length 1 for each sequence.
    pub fn embed(&self, sequences: &[Vec<u32>], pooling: Pooling) -> Result<Rows, ModelError> {
        self.embed_in(sequences, pooling, Rectangle::default(), None)?.checked("embeddings")
    }

    /// [`Model::embed`] in a pass of `least` size or more, with an adapter by its number.
    pub fn embed_in(
        &self,
        sequences: &[Vec<u32>],
        pooling: Pooling,
        least: Rectangle,
        adapter: Option<usize>,
    ) -> Result<Rows, ModelError> {
        let batch = TokenBatch::new(sequences, self.blueprint().vocab)?.at_least(least);
        let mut session = self.store.open(1);
        session.set_adapters(vec![adapter; batch.len()]);
        let output = self.pass(&batch, WANT, &mut session, None)?;
        let states = output
            .last_hidden
            .ok_or_else(|| ModelError::request("the pass gave no hidden state"))?;
        let cols = states.cols;
        let mut numbers = Vec::with_capacity(sequences.len() * cols);
        for (number, &pad) in batch.pads[..sequences.len()].iter().enumerate() {
            let start = number * batch.width;
            let rows = (start + pad..start + batch.width).map(|row| states.row(row));
            numbers.extend(normalised(pooled(rows, cols, pooling)));
        }
        Ok(Rows { cols, numbers })
    }
}

fn pooled<'a>(
    mut rows: impl ExactSizeIterator<Item = &'a [f32]>,
    cols: usize,
    pooling: Pooling,
) -> Vec<f32> {
    let count = rows.len() as f32;
    match pooling {
        Pooling::Cls => rows.next().map(<[f32]>::to_vec).unwrap_or_default(),
        Pooling::Last => rows.last().map(<[f32]>::to_vec).unwrap_or_default(),
        Pooling::Max => rows.fold(vec![f32::NEG_INFINITY; cols], |mut most, row| {
            // `max` would pass over a number that is none.
            most.iter_mut().zip(row).for_each(|(most, number)| {
                *most = if number.is_nan() { f32::NAN } else { most.max(*number) };
            });
            most
        }),
        Pooling::Mean => {
            let mut mean = rows.fold(vec![0.0; cols], |mut sum, row| {
                sum.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
                sum
            });
            mean.iter_mut().for_each(|number| *number /= count);
            mean
        }
    }
}

fn normalised(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    // As torch has it: a vector of zeros stays one.
    let length = length.max(1e-12);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pooling_takes_what_its_name_says() {
        let rows = [vec![1.0, -2.0], vec![3.0, 0.0], vec![2.0, 8.0]];
        let with = |pooling| pooled(rows.iter().map(Vec::as_slice), 2, pooling);
        assert_eq!(with(Pooling::Mean), [2.0, 2.0]);
        assert_eq!(with(Pooling::Cls), [1.0, -2.0]);
        assert_eq!(with(Pooling::Max), [3.0, 8.0]);
        assert_eq!(with(Pooling::Last), [2.0, 8.0]);
        assert_eq!(normalised(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(normalised(vec![0.0, 0.0]), [0.0, 0.0]);
    }

    #[test]
    fn pooling_is_read_in_both_spellings_and_refused_where_it_is_unknown() {
        let read = |json: &str| pooling(&Settings::parse(Path::new("p"), json.as_bytes()).unwrap());
        let old = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;
        assert_eq!(read(old).unwrap(), Pooling::Cls);
        assert_eq!(read(r#"{"pooling_mode": "mean"}"#).unwrap(), Pooling::Mean);
        assert!(read(r#"{"pooling_mode_weightedmean_tokens": true}"#).is_err());
        let two = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#;
        assert!(read(two).is_err());
    }
}
