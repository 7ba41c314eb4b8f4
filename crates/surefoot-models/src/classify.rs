//! Numbers for the labels of texts: encoders with a head for classes, above all cross-encoders, which read a query and a
//! document together and say in one number how well they fit (`…ForSequenceClassification` with one label).
//!
//! The blocks run like those of any encoder. The head is small: it is computed in f32 on the CPU from the states of
//! the texts, whatever device and precision the blocks have.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};

use crate::arch::activation::Activation;
use crate::arch::blueprint::{Classifier, NormKind};
use crate::error::ModelError;
use crate::folder::checkpoint::{Checkpoint, Stored};
use crate::folder::settings::Settings;
use crate::generate::text::TokenPair;
use crate::run::batch::{Rectangle, TokenBatch};
use crate::run::model::Model;
use crate::run::opened::Opened;
use crate::run::output::{Logits, Rows, Want};
use crate::run::pass::PassRows;

/// What a pass of a classification keeps.
pub const WANT: Want = Want { logits: Logits::None, hidden: false, last_hidden: true };

/// What makes a score of the number of a single label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ScoreActivation {
    /// `1 / (1 + e^-x)`: scores from 0 to 1.
    Sigmoid,
    /// Nothing: the number is the score.
    Identity,
}

impl ScoreActivation {
    /// The score of a number.
    pub fn score(self, number: f32) -> f32 {
        match self {
            Self::Sigmoid => 1.0 / (1.0 + (-number).exp()),
            Self::Identity => number,
        }
    }

    /// As sentence-transformers reads it; the sigmoid if nothing is said.
    fn read(settings: &Settings) -> Result<Self, ModelError> {
        const OLD: &str = "sbert_ce_default_activation_function";
        let newer = settings.object("sentence_transformers")?;
        let (settings, key) = match &newer {
            Some(newer) if newer.mentions("activation_fn") => (newer, "activation_fn"),
            _ => (settings, OLD),
        };
        let Some(name) = settings.text(key)? else { return Ok(Self::Sigmoid) };
        match name.rsplit('.').next() {
            Some("Sigmoid") => Ok(Self::Sigmoid),
            Some("Identity") => Ok(Self::Identity),
            _ => {
                let problem = format!("is '{name}'; Sigmoid and Identity are supported");
                Err(settings.problem(key, problem))
            }
        }
    }
}

/// The head of a model that classifies texts, in memory.
#[derive(Debug)]
pub struct ClassificationHead {
    takes_mean: bool,
    dense: Linear,
    activation: Activation,
    norm: Option<(Tensor<1>, Option<Tensor<1>>, f64)>,
    labels: Linear,
    /// Whether the tokenizer's settings leave token types out, so that all tokens have the first one.
    ignores_types: bool,
    /// What a single label's number becomes.
    pub score_activation: ScoreActivation,
}

#[derive(Debug)]
struct Linear {
    /// `[inputs, outputs]`.
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
}

impl Linear {
    fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        let y = x.matmul(self.weight.clone());
        match &self.bias {
            Some(bias) => y + bias.clone().unsqueeze(),
            None => y,
        }
    }

    fn outputs(&self) -> usize {
        self.weight.dims()[1]
    }
}

impl ClassificationHead {
    /// Reads the head of a model; none if the model classifies no texts.
    pub fn read(opened: &Opened) -> Result<Option<Self>, ModelError> {
        let Some(Classifier { takes_mean, dense, activation, norm, labels }) =
            opened.blueprint.classifier.clone()
        else {
            return Ok(None);
        };
        let reader = HeadReader {
            checkpoint: Checkpoint::open(&opened.folder)?,
            opened,
            hidden: opened.blueprint.hidden,
        };
        let hidden = reader.hidden;
        let norm = match norm {
            None => None,
            Some(name) => {
                let shift = match opened.blueprint.norm {
                    NormKind::Layer => Some(reader.vector(&format!("{name}.bias"), hidden)?),
                    NormKind::LayerWithoutShift | NormKind::Rms => None,
                };
                let scale = reader.vector(&format!("{name}.weight"), hidden)?;
                Some((scale, shift, opened.blueprint.eps))
            }
        };
        Ok(Some(Self {
            takes_mean,
            dense: reader.linear(dense, Some(hidden))?,
            activation,
            norm,
            labels: reader.linear(labels, None)?,
            ignores_types: ignores_types(&opened.folder)?,
            score_activation: ScoreActivation::read(&opened.settings)?,
        }))
    }

    /// How many labels there are.
    pub fn labels(&self) -> usize {
        self.labels.outputs()
    }

    /// The bytes that it takes.
    pub fn bytes(&self) -> u64 {
        let hidden = self.dense.outputs();
        ((hidden + self.labels() + 4) * hidden * size_of::<f32>()) as u64
    }

    /// The numbers of the labels for states of texts, `[texts, hidden]`.
    fn numbers(&self, states: Vec<f32>) -> Result<Rows, ModelError> {
        let hidden = self.dense.outputs();
        let shape = [states.len() / hidden.max(1), hidden];
        let x: Tensor<2> = Tensor::from_data(TensorData::new(states, shape), &Device::flex());
        let mut x = self.activation.apply(self.dense.apply(x));
        if let Some((scale, shift, eps)) = &self.norm {
            let centred = x.clone() - x.mean_dim(1);
            let variance = (centred.clone() * centred.clone()).mean_dim(1);
            x = centred / (variance + *eps).sqrt() * scale.clone().unsqueeze();
            if let Some(shift) = shift {
                x = x + shift.clone().unsqueeze();
            }
        }
        let numbers = self.labels.apply(x).try_into_vec_as::<f32>();
        let numbers =
            numbers.map_err(|error| surefoot::fault::from_error("the head of classes", error))?;
        Ok(Rows { cols: self.labels(), numbers })
    }
}

fn ignores_types(folder: &Path) -> Result<bool, ModelError> {
    let file = folder.join("tokenizer_config.json");
    if !file.exists() {
        return Ok(false);
    }
    let settings = Settings::open(&file)?;
    let inputs = settings.texts("model_input_names")?;
    Ok(inputs.is_some_and(|inputs| !inputs.contains(&"token_type_ids")))
}

/// Reads the tensors of a head and checks their shapes.
struct HeadReader<'a> {
    checkpoint: Checkpoint,
    opened: &'a Opened,
    hidden: usize,
}

impl HeadReader<'_> {
    fn stored(&self, name: &str) -> Option<&Stored> {
        let prefixed = format!("{}{name}", self.opened.blueprint.prefix);
        self.checkpoint.tensor(&prefixed).or_else(|| self.checkpoint.tensor(name))
    }

    fn needed(&self, name: &str) -> Result<&Stored, ModelError> {
        self.stored(name).ok_or_else(|| {
            let problem = format!(
                "the configuration names a model that classifies texts, but the weights have no \
                 tensor '{name}'"
            );
            ModelError::file(&self.opened.folder, problem)
        })
    }

    fn vector(&self, name: &str, length: usize) -> Result<Tensor<1>, ModelError> {
        let stored = self.needed(name)?;
        if stored.shape != [length] {
            return Err(stored.problem(format!("is {}, not [{length}]", stored.form())));
        }
        let data = TensorData::new(stored.numbers()?, [length]);
        Ok(Tensor::from_data(data, &Device::flex()))
    }

    /// A layer over the hidden state, with `outputs` if they are known.
    fn linear(&self, name: &str, outputs: Option<usize>) -> Result<Linear, ModelError> {
        let stored = self.needed(&format!("{name}.weight"))?;
        let &[rows, cols] = stored.shape.as_slice() else {
            return Err(stored.problem(format!("is {}, not a matrix", stored.form())));
        };
        if cols != self.hidden || rows == 0 || outputs.is_some_and(|outputs| outputs != rows) {
            let problem =
                format!("is {}, which does not fit a width of {}", stored.form(), self.hidden);
            return Err(stored.problem(problem));
        }
        let data = TensorData::new(stored.numbers()?, [rows, cols]);
        let weight: Tensor<2> = Tensor::from_data(data, &Device::flex());
        let bias = format!("{name}.bias");
        let bias = match self.stored(&bias) {
            Some(_) => Some(self.vector(&bias, rows)?),
            None => None,
        };
        Ok(Linear { weight: weight.transpose(), bias })
    }
}

impl Model {
    /// The numbers of the labels for each pair of texts.
    pub fn classify(
        &self,
        pairs: &[TokenPair],
        head: &ClassificationHead,
    ) -> Result<Rows, ModelError> {
        self.classify_in(pairs, head, Rectangle::default(), None)?.checked("classes")
    }

    /// [`Model::classify`] in a pass of `least` size or more, with an adapter by its number.
    pub fn classify_in(
        &self,
        pairs: &[TokenPair],
        head: &ClassificationHead,
        least: Rectangle,
        adapter: Option<usize>,
    ) -> Result<Rows, ModelError> {
        let sequences: Vec<Vec<u32>> = pairs.iter().map(|pair| pair.ids.clone()).collect();
        let batch = TokenBatch::new(&sequences, self.blueprint().vocab)?.at_least(least);
        let width = batch.width;
        let kinds = self.blueprint().embeddings.segments.as_ref().map_or(0, |(_, rows)| *rows);
        // A model with one segment has no way to tell texts apart by it.
        let has_types = kinds > 1 && !head.ignores_types;
        let mut token_types = vec![0; if has_types { batch.ids.len() } else { 0 }];
        for ((pair, pad), row) in
            pairs.iter().zip(&batch.pads).zip(token_types.chunks_exact_mut(width))
        {
            for (to, from) in row.iter_mut().skip(*pad).zip(&pair.types) {
                if usize::from(*from) >= kinds {
                    return Err(ModelError::request(format!(
                        "the tokenizer gives token type {from}, the model has {kinds}"
                    )));
                }
                *to = *from;
            }
        }
        let firsts = batch.pads.iter().enumerate().map(|(row, pad)| row * width + pad);
        let rows = PassRows {
            ids: &batch.ids,
            token_types: &token_types,
            positions: &batch.positions(0),
            rotated_alike: batch.pads.iter().all(|pad| *pad == batch.pads[0]),
            pads: &batch.pads,
            past: 0,
            is_mixed: false,
            width,
            wanted: (!head.takes_mean).then(|| firsts.collect()),
        };
        let mut session = self.store.open(1);
        session.set_adapters(vec![adapter; batch.len()]);
        let output = self.pass_rows(&rows, WANT, &mut session, None, &mut None)?;
        let states = output
            .last_hidden
            .ok_or_else(|| ModelError::request("the pass gave no hidden state"))?;
        let mut of_texts = Vec::with_capacity(pairs.len() * states.cols);
        for (number, pad) in batch.pads.iter().take(pairs.len()).enumerate() {
            match head.takes_mean {
                false => of_texts.extend_from_slice(states.row(number)),
                true => of_texts.extend(mean(&states, number * width + pad..(number + 1) * width)),
            }
        }
        head.numbers(of_texts)
    }
}

/// The mean of some rows.
fn mean(states: &Rows, rows: std::ops::Range<usize>) -> Vec<f32> {
    let count = rows.len() as f32;
    let mut mean = vec![0.0; states.cols];
    for row in rows {
        mean.iter_mut().zip(states.row(row)).for_each(|(sum, number)| *sum += number);
    }
    mean.iter_mut().for_each(|number| *number /= count);
    mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_activation_of_a_score_is_read_as_sentence_transformers_reads_it() {
        let read = |json: &str| {
            ScoreActivation::read(&Settings::parse(Path::new("c"), json.as_bytes()).unwrap())
        };
        assert_eq!(read("{}").unwrap(), ScoreActivation::Sigmoid);
        let old = r#"{"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}"#;
        assert_eq!(read(old).unwrap(), ScoreActivation::Identity);
        let newer = r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5"}}"#;
        assert_eq!(read(newer).unwrap(), ScoreActivation::Sigmoid);
        assert!(read(r#"{"sbert_ce_default_activation_function": "torch.nn.Tanh"}"#).is_err());
        assert_eq!(ScoreActivation::Sigmoid.score(0.0), 0.5);
        assert_eq!(ScoreActivation::Identity.score(-3.0), -3.0);
    }
}
