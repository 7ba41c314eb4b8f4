//! Batches: on the host as the loader makes them, on a device as a model takes them.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use surefoot::place::check_ids;
use surefoot::{Fault, FaultKind};
use surefoot_models::run::sequences::SequenceBatch;

use crate::data::{Form, Label, NOT_PREDICTED, PADDING, Sample, Target};

/// Samples side by side in the host's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    form: Form,
    floats: Vec<f32>,
    tokens: Vec<i32>,
    targets: Vec<i32>,
    /// The segment of each token of packed sequences.
    segments: Vec<u32>,
    /// Targets that are numbers: in regression.
    numbers: Vec<f32>,
    /// How much each class counts in the loss; all the same if none.
    class_weights: Option<Arc<Vec<f32>>>,
    samples: usize,
    /// A seed for each sample, if anything is random in training with it.
    seeds: Vec<u64>,
    /// Samples that could not be read and were left out, each with the reason.
    pub skipped: Vec<String>,
}

impl HostBatch {
    /// An empty batch with room for `samples`.
    pub fn new(form: Form, samples: usize) -> Self {
        let (floats, tokens) = match form {
            Form::Dense { .. } => (samples * form.size(), 0),
            Form::Text { .. } | Form::Sequences { .. } => (0, samples * form.size()),
        };
        Self {
            form,
            floats: Vec::with_capacity(floats),
            tokens: Vec::with_capacity(tokens),
            targets: Vec::with_capacity(samples * form.items()),
            segments: Vec::new(),
            numbers: Vec::new(),
            class_weights: None,
            samples: 0,
            seeds: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Adds a sample, or says why it doesn't belong here.
    pub fn push(&mut self, sample: Sample) -> Result<(), String> {
        match (sample, self.form) {
            (Sample::Dense { values, label }, Form::Dense { target, .. }) => {
                if values.len() != self.form.size() {
                    return Err(format!(
                        "it has {} numbers, not {}",
                        values.len(),
                        self.form.size()
                    ));
                }
                if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                    return Err(format!("its number {at} is {}", values[at]));
                }
                match (label, target) {
                    (Label::Class(class), Target::Classes(count)) if class < count => {
                        self.targets.push(class as i32);
                    }
                    (Label::Number(number), Target::Number) if number.is_finite() => {
                        self.numbers.push(number);
                    }
                    _ => return Err(format!("its label is {label:?}, and {target} are predicted")),
                }
                self.floats.extend(values);
            }
            (Sample::Tokens(ids), Form::Text { length, vocabulary }) => {
                if ids.len() != length + 1 || ids.iter().any(|id| *id as usize >= vocabulary) {
                    return Err(format!("it is not a piece of {length} of {vocabulary} tokens"));
                }
                self.tokens.extend(ids[..length].iter().map(|id| *id as i32));
                self.targets.extend(ids[1..].iter().map(|id| *id as i32));
            }
            (
                Sample::Sequences { mut tokens, mut segments, mut targets },
                Form::Sequences { vocabulary, length, classes },
            ) => {
                let items = classes.map_or(tokens.len(), |_| 1);
                let most = self.form.outputs() as i64;
                let known = |target: &i32| {
                    (classes.is_none() && *target == NOT_PREDICTED)
                        || (0..most).contains(&i64::from(*target))
                };
                if tokens.len() > length
                    || tokens.len() != segments.len()
                    || targets.len() != items
                    || tokens.iter().any(|id| *id as usize >= vocabulary)
                    || !targets.iter().all(known)
                {
                    return Err(format!("it is not a row of {length} of {vocabulary} tokens"));
                }
                tokens.resize(length, 0);
                segments.resize(length, PADDING);
                if classes.is_none() {
                    targets.resize(length, NOT_PREDICTED);
                }
                self.tokens.extend(tokens.into_iter().map(|id| id as i32));
                self.segments.extend(segments);
                self.targets.extend(targets);
            }
            _ => return Err("it is of another sort than the rest".to_owned()),
        }
        self.samples += 1;
        Ok(())
    }

    /// Gives the sample that was added last the seed of what is random in training with it. All samples have one, or none.
    pub fn seed_last(&mut self, seed: u64) {
        self.seeds.push(seed);
    }

    /// Makes each class count so much in the loss.
    pub fn weigh_classes(&mut self, weights: Option<Arc<Vec<f32>>>) {
        self.class_weights = weights;
    }

    /// What all predictions together count in the loss: their number, unless classes have weights.
    pub fn weight(&self) -> f64 {
        match &self.class_weights {
            None => self.items() as f64,
            Some(weights) => {
                self.targets.iter().map(|class| f64::from(weights[*class as usize])).sum()
            }
        }
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// How many predictions are made: a class or number for each sample, or each token.
    pub fn items(&self) -> usize {
        match self.form {
            Form::Sequences { .. } => {
                self.targets.iter().filter(|target| **target != NOT_PREDICTED).count()
            }
            _ => self.samples * self.form.items(),
        }
    }

    /// What the samples look like.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The right classes or tokens; none in regression.
    pub fn targets(&self) -> &[i32] {
        &self.targets
    }

    /// Some samples, on a device.
    pub fn on_device(&self, range: Range<usize>, device: &Device) -> Result<Batch, Fault> {
        if let Form::Sequences { vocabulary, length, classes } = self.form {
            return self.sequences_on_device(range, vocabulary, length, classes, device);
        }
        let (samples, size, items) = (range.len(), self.form.size(), self.form.items());
        let ints = |values: &[i32], shape: [usize; 2]| {
            Tensor::<2, Int>::from_data(TensorData::new(values.to_vec(), shape), device)
        };
        let numbers = range.start * size..range.end * size;
        let input = match self.form {
            Form::Dense { .. } => {
                let data = TensorData::new(self.floats[numbers].to_vec(), [samples, size]);
                Input::Dense(Tensor::from_data(data, device))
            }
            Form::Text { .. } | Form::Sequences { .. } => {
                Input::Tokens(ints(&self.tokens[numbers], [samples, size]))
            }
        };
        let targets = match self.form.is_regression() {
            true => {
                let data = TensorData::new(self.numbers[range.clone()].to_vec(), [samples, 1]);
                Targets::Numbers(Tensor::from_data(data, device))
            }
            false => {
                let targets = &self.targets[range.start * items..range.end * items];
                let ids: Vec<i64> = targets.iter().map(|id| i64::from(*id)).collect();
                check_ids("targets", &ids, self.form.outputs())?;
                Targets::Classes(ints(targets, [samples, items]))
            }
        };
        let weights = self.class_weights.as_ref().map(|weights| {
            let classes = &self.targets[range.start * items..range.end * items];
            let each: Vec<f32> = classes.iter().map(|class| weights[*class as usize]).collect();
            let count = each.len();
            Tensor::from_data(TensorData::new(each, [count]), device)
        });
        Ok(Batch { input, targets, weights })
    }

    /// Rows of sequences, no wider than the longest of them.
    fn sequences_on_device(
        &self,
        range: Range<usize>,
        vocabulary: usize,
        length: usize,
        classes: Option<usize>,
        device: &Device,
    ) -> Result<Batch, Fault> {
        let rows = range.start * length..range.end * length;
        let used = |row: &[u32]| row.iter().take_while(|segment| **segment != PADDING).count();
        let width = self.segments[rows.clone()].chunks_exact(length).map(used).max();
        let width = width.unwrap_or(1).max(1);
        let cut = |row: usize| row * length..row * length + width;
        let ids = range.clone().flat_map(|row| &self.tokens[cut(row)]).map(|id| *id as u32);
        let segments = range.clone().flat_map(|row| &self.segments[cut(row)]).copied();
        let batch = SequenceBatch::new(ids.collect(), segments.collect(), width, vocabulary)
            .map_err(|error| Fault::new(FaultKind::DataLoading, "load", error.to_string()))?
            .with_seeds(self.seeds.get(range.clone()).unwrap_or_default());
        let (at, targets): (Vec<i64>, Vec<i32>) = match classes {
            // The first token stands for its row.
            Some(_) => range
                .clone()
                .map(|row| (((row - range.start) * width) as i64, self.targets[row]))
                .unzip(),
            None => range
                .clone()
                .flat_map(|row| self.targets[cut(row)].iter())
                .enumerate()
                .filter(|(_, target)| **target != NOT_PREDICTED)
                .map(|(at, target)| (at as i64, *target))
                .unzip(),
        };
        let count = targets.len();
        let ids: Vec<i64> = targets.iter().map(|id| i64::from(*id)).collect();
        check_ids("targets", &ids, self.form.outputs())?;
        let weights = self.class_weights.as_ref().map(|weights| {
            let each: Vec<f32> = targets.iter().map(|class| weights[*class as usize]).collect();
            Tensor::from_data(TensorData::new(each, [count]), device)
        });
        let predicted = Tensor::from_data(TensorData::new(at, [count]), device);
        let targets = Tensor::from_data(TensorData::new(targets, [count, 1]), device);
        Ok(Batch {
            input: Input::Sequences { batch: Arc::new(batch), predicted },
            targets: Targets::Classes(targets),
            weights,
        })
    }
}

/// What a model takes in.
#[derive(Clone, Debug)]
pub enum Input {
    /// Numbers: a row for each sample, channel by channel.
    Dense(Tensor<2>),
    /// Tokens: a row for each sample.
    Tokens(Tensor<2, Int>),
    /// Rows of sequences for a pretrained model.
    Sequences {
        /// The tokens, on the host: embeddings are looked up in the model's file.
        batch: Arc<SequenceBatch>,
        /// The positions, counted over all rows, that a prediction is made at.
        predicted: Tensor<1, Int>,
    },
}

/// What is right for the samples of a batch.
#[derive(Clone, Debug)]
pub enum Targets {
    /// A class for each sample, or a token for each token.
    Classes(Tensor<2, Int>),
    /// A number for each sample.
    Numbers(Tensor<2>),
}

/// A batch on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What the model takes in.
    pub input: Input,
    /// What it should predict.
    pub targets: Targets,
    /// How much each prediction counts in the loss; all the same if none.
    pub weights: Option<Tensor<1>>,
}

impl Batch {
    /// The numbers. Panics on text, which a model for numbers can't take.
    pub fn dense(&self) -> Tensor<2> {
        match &self.input {
            Input::Dense(numbers) => numbers.clone(),
            Input::Tokens(_) | Input::Sequences { .. } => {
                panic!("this model takes numbers, but the data is text")
            }
        }
    }

    /// The right classes or tokens. Panics in regression, which a model for classes can't do.
    pub fn classes(&self) -> Tensor<2, Int> {
        match &self.targets {
            Targets::Classes(classes) => classes.clone(),
            Targets::Numbers(_) => panic!("this model predicts classes, but the data has numbers"),
        }
    }

    /// The tokens. Panics on numbers, which a model for text can't take.
    pub fn tokens(&self) -> Tensor<2, Int> {
        match &self.input {
            Input::Tokens(tokens) => tokens.clone(),
            Input::Dense(_) => panic!("this model takes text, but the data is numbers"),
            Input::Sequences { .. } => {
                panic!("this model takes plain text, but the data is for a pretrained model")
            }
        }
    }
}
