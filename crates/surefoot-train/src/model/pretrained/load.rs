//! From a configuration to the model: opens the folder, chooses what is trained, and makes its first values.

use std::path::{Path, PathBuf};

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use surefoot_models::adapter::{
    Adapter, AdapterConfig, AdapterPair, Projections, Target, default_targets,
};
use surefoot_models::{ModelError, Opened};

use super::classifier::Classifier;
use super::{Frozen, Pair, Pretrained};
use crate::config::{PretrainedConfig, Tune};
use crate::data::Form;
use crate::estimate::pretrained::resident_share;
use crate::random::SeededRandom;

/// Why a pretrained model can't be trained as it is asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// The model folder or the adapter can't be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Names of projections that the model doesn't have.
    #[error("{}: model.targets names {name}, which the model doesn't have; it has {}", path.display(), known.join(", "))]
    Targets {
        /// The model folder.
        path: PathBuf,
        /// The name.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// The model can't predict what the data asks for.
    #[error("{}: {why}", path.display())]
    Unsuited {
        /// The model folder.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl Pretrained {
    /// Opens the model of `config` for samples of `form`. New adapters depend on the seed alone.
    pub fn open(
        config: &PretrainedConfig,
        form: Form,
        seed: u64,
        device: &Device,
    ) -> Result<Self, PretrainedError> {
        let opened = Opened::new(&config.path)?;
        let classes = form.classes();
        check_suited(&opened, classes, config.tune, &config.path)?;
        let device = device.clone().without_autodiff();
        let (mut pairs, mut targets) = (Vec::new(), Vec::new());
        let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
        let (mut matrix_names, mut vector_names) = (Vec::new(), Vec::new());
        match config.tune {
            Tune::Lora => {
                for pair in first_pairs(config, &opened, seed)? {
                    let Target { inputs, outputs, .. } = pair.target;
                    let rank = pair.rank;
                    pairs.push(Pair {
                        a: parameter(pair.a, [rank, inputs], &device),
                        b: parameter(pair.b, [outputs, rank], &device),
                    });
                    targets.push((pair.target, pair.scale));
                }
            }
            Tune::Full => {
                for stored in opened.tensors() {
                    let numbers = stored.numbers()?;
                    match stored.shape[..] {
                        [rows, cols] => {
                            matrices.push(parameter(numbers, [rows, cols], &device));
                            matrix_names.push(stored.name.clone());
                        }
                        _ => {
                            let count = numbers.len();
                            vectors.push(parameter(numbers, [count], &device));
                            vector_names.push(stored.name.clone());
                        }
                    }
                }
            }
            Tune::Head if classes.is_some() => {}
            Tune::Head => {
                if let Some(stored) = opened.head() {
                    let [rows, cols] = [stored.shape[0], stored.shape[1]];
                    matrices.push(parameter(stored.numbers()?, [rows, cols], &device));
                    matrix_names.push(stored.name.clone());
                }
            }
        }
        let classifier = match classes {
            None => None,
            Some(classes) => {
                let hidden = opened.blueprint.hidden;
                let pooler = pooler(&opened, &config.path)?;
                let full = config.tune == Tune::Full;
                Some(Classifier::new(classes, hidden, pooler, full, seed, &device))
            }
        };
        let share = match config.tune {
            // All matrices are parameters.
            Tune::Full => 0.0,
            Tune::Lora | Tune::Head => resident_share(config, &opened, form),
        };
        let frozen =
            Frozen::new(opened, targets, matrix_names, vector_names, share, config.dropout);
        Ok(Self { pairs, matrices, vectors, classifier, frozen })
    }

    /// The names of the tensors that are trained themselves, as the model's files have them, in the order of the
    /// parameters; empty ones for low-rank pairs.
    pub fn trained_names(&self) -> Vec<String> {
        let pairs = self.pairs.iter().flat_map(|_| [String::new(), String::new()]);
        let (matrices, vectors) = (self.frozen.matrices(), self.frozen.vectors());
        let mut names: Vec<String> = pairs.chain(matrices.iter().chain(vectors).cloned()).collect();
        if let Some(classifier) = &self.classifier {
            names.extend(classifier.names().map(str::to_owned));
        }
        names
    }

    /// The published model that is trained.
    pub fn opened(&self) -> &Opened {
        self.frozen.opened()
    }

    /// The share of the matrices that stays in memory; the rest is read when it is needed.
    pub fn resident_share(&self) -> f64 {
        self.frozen.share()
    }

    /// The low-rank pairs with their present values.
    pub fn adapter_pairs(&self) -> Vec<AdapterPair> {
        let numbers = |tensor: &Param<Tensor<2>>| {
            tensor.val().inner().into_data().try_to_vec::<f32>().unwrap_or_default()
        };
        self.pairs
            .iter()
            .zip(self.frozen.targets())
            .map(|(pair, (target, scale))| AdapterPair {
                target: target.clone(),
                rank: pair.a.val().dims()[0],
                a: numbers(&pair.a),
                b: numbers(&pair.b),
                scale: *scale,
            })
            .collect()
    }

    /// The adapter with the present values of the pairs, for other programs; none if no pairs are trained.
    pub fn adapter(&self, config: &PretrainedConfig) -> Option<Adapter> {
        let pairs = self.adapter_pairs();
        if pairs.is_empty() {
            return None;
        }
        let mut settings =
            AdapterConfig::new(config.rank, config.alpha, &targets(config, &self.frozen));
        settings.dropout = config.dropout;
        settings.base_model = Some(config.path.display().to_string());
        settings.fan_in_fan_out =
            self.frozen.targets().iter().any(|(target, _)| target.fan_in_fan_out);
        Some(Adapter { config: settings, pairs, folder: None })
    }
}

fn parameter<const D: usize>(
    numbers: Vec<f32>,
    shape: [usize; D],
    device: &Device,
) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::from_data(TensorData::new(numbers, shape), device))
}

fn targets(config: &PretrainedConfig, frozen: &Frozen) -> Vec<String> {
    match config.targets.is_empty() {
        true => default_targets(&Projections::of(frozen.opened())),
        false => config.targets.clone(),
    }
}

/// The pairs to begin with: those of an adapter, or new ones as PEFT makes them. The rows of `a` are uniform in
/// ±1/√inputs, `b` is zero: at first the model is as it was.
fn first_pairs(
    config: &PretrainedConfig,
    opened: &Opened,
    seed: u64,
) -> Result<Vec<AdapterPair>, PretrainedError> {
    if let Some(folder) = &config.adapter {
        return Ok(Adapter::read(folder, opened)?.pairs);
    }
    let projections = Projections::of(opened);
    for name in &config.targets {
        if projections.named(std::slice::from_ref(name)).is_empty() {
            return Err(PretrainedError::Targets {
                path: config.path.clone(),
                name: name.clone(),
                known: projections.short_names().into_iter().map(str::to_owned).collect(),
            });
        }
    }
    let names = match config.targets.is_empty() {
        true => default_targets(&projections),
        false => config.targets.clone(),
    };
    let settings = AdapterConfig::new(config.rank, config.alpha, &names);
    let pairs = projections.named(&names).into_iter().enumerate().map(|(number, target)| {
        let mut random = SeededRandom::of(&[seed, 0x10fa, number as u64]);
        let reach = 1.0 / (target.inputs as f64).sqrt();
        let a = (0..config.rank * target.inputs)
            .map(|_| ((2.0 * random.unit() - 1.0) * reach) as f32)
            .collect();
        AdapterPair {
            rank: config.rank,
            a,
            b: vec![0.0; target.outputs * config.rank],
            scale: settings.scale(&target.module, config.rank),
            target: target.clone(),
        }
    });
    Ok(pairs.collect())
}

fn check_suited(
    opened: &Opened,
    classes: Option<usize>,
    tune: Tune,
    path: &Path,
) -> Result<(), PretrainedError> {
    let causal = opened.blueprint.causal;
    let has_experts = opened.blueprint.blocks.iter().any(|block| block.experts.is_some());
    let why = match classes {
        _ if has_experts && tune == Tune::Full => {
            "the experts of a model are not trained; `tune: lora` adapts its attention"
        }
        None if !causal || !opened.has_head() => {
            "an encoder or a model without a head can't predict tokens; for classes use data.kind csv"
        }
        Some(_) if causal => {
            "a decoder is not trained to classify here; use an encoder such as BERT, or chats"
        }
        _ => return Ok(()),
    };
    Err(PretrainedError::Unsuited { path: path.to_owned(), why: why.to_owned() })
}

/// The pooler of the checkpoint.
fn pooler(opened: &Opened, path: &Path) -> Result<(Vec<f32>, Vec<f32>), PretrainedError> {
    let hidden = opened.blueprint.hidden;
    let find = |end: &str| opened.beside(&format!("pooler.dense.{end}"));
    match (find("weight")?, find("bias")?) {
        (Some(weight), Some(bias))
            if weight.shape == [hidden, hidden] && bias.shape == [hidden] =>
        {
            Ok((weight.numbers()?, bias.numbers()?))
        }
        _ => Err(PretrainedError::Unsuited {
            path: path.to_owned(),
            why: "the checkpoint has no pooler, which a classifier of texts needs".to_owned(),
        }),
    }
}
