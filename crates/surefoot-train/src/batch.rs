//! Batches: on the host as the loader makes them, on a device as a model takes them.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use surefoot::Fault;
use surefoot::place::check_ids;

use crate::data::{Form, Sample};

/// Samples side by side in the host's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    form: Form,
    floats: Vec<f32>,
    tokens: Vec<i32>,
    targets: Vec<i32>,
    samples: usize,
    /// Samples that could not be read and were left out, each with the reason.
    pub skipped: Vec<String>,
}

impl HostBatch {
    /// An empty batch with room for `samples`.
    pub fn new(form: Form, samples: usize) -> Self {
        let (floats, tokens) = match form {
            Form::Dense { .. } => (samples * form.size(), 0),
            Form::Text { .. } => (0, samples * form.size()),
        };
        Self {
            form,
            floats: Vec::with_capacity(floats),
            tokens: Vec::with_capacity(tokens),
            targets: Vec::with_capacity(samples * form.items()),
            samples: 0,
            skipped: Vec::new(),
        }
    }

    /// Adds a sample, or says why it doesn't belong here.
    pub fn push(&mut self, sample: Sample) -> Result<(), String> {
        match (sample, self.form) {
            (Sample::Dense { values, label }, Form::Dense { classes, .. }) => {
                if values.len() != self.form.size() {
                    return Err(format!(
                        "it has {} numbers, not {}",
                        values.len(),
                        self.form.size()
                    ));
                }
                if label >= classes {
                    return Err(format!("its class is {label} of {classes}"));
                }
                if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                    return Err(format!("its number {at} is {}", values[at]));
                }
                self.floats.extend(values);
                self.targets.push(label as i32);
            }
            (Sample::Tokens(ids), Form::Text { length, vocabulary }) => {
                if ids.len() != length + 1 || ids.iter().any(|id| *id as usize >= vocabulary) {
                    return Err(format!("it is no piece of {length} of {vocabulary} tokens"));
                }
                self.tokens.extend(ids[..length].iter().map(|id| *id as i32));
                self.targets.extend(ids[1..].iter().map(|id| *id as i32));
            }
            _ => return Err("it is of another sort than the rest".to_owned()),
        }
        self.samples += 1;
        Ok(())
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// How many things are foretold: classes or tokens.
    pub fn items(&self) -> usize {
        self.targets.len()
    }

    /// Some samples, on a device.
    pub fn on_device(&self, range: Range<usize>, device: &Device) -> Result<Batch, Fault> {
        let (samples, size, items) = (range.len(), self.form.size(), self.form.items());
        let targets = &self.targets[range.start * items..range.end * items];
        let bound = match self.form {
            Form::Dense { classes, .. } => classes,
            Form::Text { vocabulary, .. } => vocabulary,
        };
        let ids: Vec<i64> = targets.iter().map(|id| i64::from(*id)).collect();
        check_ids("targets", &ids, bound)?;
        let ints = |values: &[i32], shape: [usize; 2]| {
            Tensor::<2, Int>::from_data(TensorData::new(values.to_vec(), shape), device)
        };
        let numbers = range.start * size..range.end * size;
        let input = match self.form {
            Form::Dense { .. } => {
                let data = TensorData::new(self.floats[numbers].to_vec(), [samples, size]);
                Input::Dense(Tensor::from_data(data, device))
            }
            Form::Text { .. } => Input::Tokens(ints(&self.tokens[numbers], [samples, size])),
        };
        Ok(Batch { input, targets: ints(targets, [samples, items]) })
    }
}

/// What a model takes in.
#[derive(Clone, Debug)]
pub enum Input {
    /// Numbers: a row for each sample, channel by channel.
    Dense(Tensor<2>),
    /// Tokens: a row for each sample.
    Tokens(Tensor<2, Int>),
}

/// A batch on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What the model takes in.
    pub input: Input,
    /// What it should foretell: a class for each sample, or a token for each token.
    pub targets: Tensor<2, Int>,
}

impl Batch {
    /// The numbers. Panics on text, which a model for numbers can't take.
    pub fn dense(&self) -> Tensor<2> {
        match &self.input {
            Input::Dense(numbers) => numbers.clone(),
            Input::Tokens(_) => panic!("this model takes numbers, but the data is text"),
        }
    }

    /// The tokens. Panics on numbers, which a model for text can't take.
    pub fn tokens(&self) -> Tensor<2, Int> {
        match &self.input {
            Input::Tokens(tokens) => tokens.clone(),
            Input::Dense(_) => panic!("this model takes text, but the data is numbers"),
        }
    }
}
