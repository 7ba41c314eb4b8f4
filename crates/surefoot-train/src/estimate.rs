//! What training will need of memory, estimated from the configuration before anything is
//! allocated.
//!
//! Running out of the host's memory aborts the process, so a model that can't fit is refused by
//! its numbers, and a batch that may not fit is run in parts whose size is found by trying
//! ([`fit`](crate::fit)). The number of parameters is exact; the memory of activations is an
//! estimate that only decides whether to try.

pub(crate) mod pretrained;

use surefoot::device::memory::Bytes;
use surefoot::{Fault, FaultKind, Footing};

use crate::config::{Config, ModelConfig};
use crate::data::Form;
use crate::optimizer::UpdateRule;

/// The share of what is available that training may take if no budget says so.
pub(crate) const SHARE: f64 = 0.8;
/// A step that is estimated to take more than this share of what is available is tried first.
const SURE: f64 = 0.5;
/// Bytes of a number.
const FLOAT: u128 = 4;

/// What a run needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The numbers in the model.
    pub parameters: u128,
    /// Weights, their gradients and the optimizer's state: the least that training takes.
    pub model: u128,
    /// The same while an update makes the next state beside the last one.
    pub update: u128,
    /// Activations and their gradients, for each sample that is run at once.
    pub sample: u128,
    /// One batch on the host, as it is loaded.
    pub batch: u128,
    /// Whether a published model is trained, whose size the configuration does not set.
    pub is_pretrained: bool,
}

impl Estimate {
    /// Estimates the needs of a configuration for so many samples of this form.
    pub fn of(config: &Config, form: Form, samples: usize) -> Self {
        let parameters = parameters(&config.model, form);
        let moments = match config.optimizer.rule {
            UpdateRule::AdamW { .. } => 2,
            UpdateRule::Sgd { momentum: 0.0, .. } => 0,
            UpdateRule::Sgd { .. } => 1,
        };
        // A batch is never larger than the data.
        let batch = (config.batch_size as u128) * (config.accumulate as u128);
        let batch = batch.min(samples as u128);
        Self {
            parameters,
            model: parameters * FLOAT * (2 + moments),
            update: parameters * FLOAT * (3 + 2 * moments),
            sample: activations(&config.model, form, config.gradient_checkpointing) * FLOAT,
            is_pretrained: matches!(config.model, ModelConfig::Pretrained(_)),
            batch: batch * (form.size() as u128 + form.items() as u128) * FLOAT,
        }
    }

    /// All that a step with `samples` samples at once takes, with `batches` batches in memory.
    pub fn step(&self, samples: usize, batches: usize) -> u128 {
        self.update + self.sample * samples as u128 + self.batch * batches as u128
    }

    /// Whether a step is so far from taking `available` bytes that there is no need to try.
    pub fn surely_fits(&self, samples: usize, batches: usize, available: u64) -> bool {
        (self.step(samples, batches) as f64) < SURE * available as f64
    }

    /// Refuses a model that can't be trained in `available` bytes, which are what a `budget` leaves
    /// if there is one.
    pub fn check(&self, available: u64, budget: Option<u64>, device: &str) -> Result<(), Fault> {
        let one = self.model.saturating_add(self.sample).saturating_add(self.batch);
        if one <= u128::from(available) {
            return Ok(());
        }
        let bytes = |bytes: u128| Bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        let there = match budget {
            Some(budget) => format!("the budget of {} leaves {}", Bytes(budget), Bytes(available)),
            None => format!("{} are available", Bytes(available)),
        };
        let message = format!(
            "a model of {} parameters takes at least {} to train (weights, gradients and optimizer \
             {}, one sample {}, a loaded batch {}), and {there}",
            self.parameters,
            bytes(one),
            bytes(self.model),
            bytes(self.sample),
            bytes(self.batch),
        );
        let advice = match self.batch > self.model.saturating_add(self.sample) {
            true => "lower `batch_size`",
            false if self.sample > self.model && self.is_pretrained => {
                "set `gradient_checkpointing: true`, or lower `data.length`"
            }
            false if self.is_pretrained => "set `model.tune: lora`, or lower `model.rank`",
            false => "make the model smaller: `model.hidden`, `model.width` or `model.layers`",
        };
        let fault = Fault::new(FaultKind::OutOfMemory, "fit", message);
        Err(fault.on(device.to_owned()).advise(advice))
    }
}

/// Switches gradient checkpointing on where a published model would not stay within the budget without it, and says whether it
/// did.
pub fn choose_checkpointing(config: &mut Config, form: Form) -> bool {
    let (ModelConfig::Pretrained(model), Some(budget)) = (&config.model, config.memory) else {
        return false;
    };
    if config.gradient_checkpointing || !pretrained::needs_checkpointing(model, form, budget) {
        return false;
    }
    config.gradient_checkpointing = true;
    true
}

/// Refuses a configuration whose model can't be trained on the footing's device, before it is made.
pub fn check_fits(
    config: &Config,
    form: Form,
    samples: usize,
    footing: &Footing,
) -> Result<(), Fault> {
    let device = footing.device()?.name().to_string();
    let available = available(footing, config.memory)?;
    Estimate::of(config, form, samples).check(available, config.memory, &device)
}

/// What can still be allocated on the device that work starts on, within a budget if there is one.
pub fn available(footing: &Footing, budget: Option<u64>) -> Result<u64, Fault> {
    let room = footing.room()?;
    let left = budget.map_or(u64::MAX, |budget| budget.saturating_sub(room.device_in_use));
    Ok(room.device.min(left))
}

/// The numbers in a model.
pub fn parameters(model: &ModelConfig, form: Form) -> u128 {
    let outputs = form.outputs() as u128;
    let linear = |inputs: u128, outputs: u128| (inputs + 1) * outputs;
    match model {
        ModelConfig::Mlp { hidden } => {
            let mut inputs = form.size() as u128;
            let mut sum = 0;
            for &width in hidden.iter().chain([&form.outputs()]) {
                sum += linear(inputs, width as u128);
                inputs = width as u128;
            }
            sum
        }
        ModelConfig::Cnn { width, stages } => {
            let channels = match form {
                Form::Dense { channels, .. } => channels as u128,
                Form::Text { .. } | Form::Sequences { .. } => 1,
            };
            // A convolution without bias, and the scale and shift of its norm.
            let unit =
                |inputs: u128, outputs: u128, kernel: u128| inputs * outputs * kernel + 2 * outputs;
            let mut inputs = *width as u128;
            let mut sum = unit(channels, inputs, 9);
            for stage in 0..*stages {
                let outputs = (*width as u128) << stage;
                sum += unit(inputs, outputs, 9) + unit(outputs, outputs, 9);
                if inputs != outputs || stage > 0 {
                    sum += unit(inputs, outputs, 1);
                }
                inputs = outputs;
            }
            sum + linear(inputs, outputs)
        }
        ModelConfig::Gpt { layers, width, .. } => {
            let (width, length) = (*width as u128, form.size() as u128);
            let block = linear(width, 3 * width)
                + linear(width, width)
                + linear(width, 4 * width)
                + linear(4 * width, width)
                + 4 * width;
            (outputs + length) * width + *layers as u128 * block + 2 * width + width * outputs
        }
        ModelConfig::Pretrained(config) => pretrained::parameters(config, form),
    }
}

/// Numbers that a forward and backward pass keep for one sample.
fn activations(model: &ModelConfig, form: Form, checkpointing: bool) -> u128 {
    /// Each activation is kept for the backward pass and has a gradient.
    const COPIES: u128 = 3;
    match model {
        ModelConfig::Mlp { hidden } => {
            let widths: u128 = hidden.iter().map(|width| *width as u128).sum();
            COPIES * (form.size() as u128 + widths + form.outputs() as u128)
        }
        ModelConfig::Cnn { width, stages } => {
            let (height, row) = match form {
                Form::Dense { height, width, .. } => (height as u128, width as u128),
                Form::Text { length, .. } | Form::Sequences { length, .. } => (1, length as u128),
            };
            let mut sum = 2 * *width as u128 * height * row;
            for stage in 0..*stages {
                let area = height.div_ceil(1 << stage) * row.div_ceil(1 << stage);
                // Two units and a way around them, each a convolution and a norm.
                sum += 6 * ((*width as u128) << stage) * area;
            }
            COPIES * sum
        }
        ModelConfig::Gpt { layers, width, .. } => {
            let (width, length) = (*width as u128, form.size() as u128);
            let token = *layers as u128 * 16 * width + form.outputs() as u128;
            COPIES * length * token
        }
        ModelConfig::Pretrained(config) => pretrained::activations(config, form, checkpointing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Target;
    use crate::model::Builtin;
    use burn::module::Module;
    use burn::tensor::Device;

    fn config(model: &str) -> Config {
        let kind = if model.contains("gpt") { "text, path: t" } else { "digits" };
        let text = format!("{{data: {{kind: {kind}}}, model: {{kind: {model}}}, epochs: 1}}");
        Config::parse(&text, &[]).unwrap()
    }

    #[test]
    fn parameters_are_counted_without_making_the_model() {
        let images = Form::Dense { channels: 3, height: 12, width: 10, target: Target::Classes(7) };
        let numbers = Form::Dense { channels: 5, height: 1, width: 1, target: Target::Number };
        let text = Form::Text { vocabulary: 19, length: 6 };
        for (model, form) in [
            ("mlp, hidden: [8, 3]", images),
            ("mlp, hidden: [4]", numbers),
            ("cnn, width: 8, stages: 1", images),
            ("cnn, width: 16, stages: 3", images),
            ("gpt, layers: 3, heads: 2, width: 8", text),
        ] {
            let config = config(model);
            let made = Builtin::new(&config.model, form, 1, &Device::flex()).unwrap().num_params();
            assert_eq!(parameters(&config.model, form), made as u128, "{model}");
        }
    }

    #[test]
    fn a_model_that_can_not_fit_is_refused_by_its_numbers() {
        let form = Form::Dense { channels: 64, height: 1, width: 1, target: Target::Classes(10) };
        let huge = Estimate::of(&config("mlp, hidden: [1000000000]"), form, 1438);
        assert_eq!(huge.parameters, 75_000_000_010);
        let fault = huge.check(16 << 30, None, "cpu").unwrap_err();
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
        let told = fault.root_cause();
        assert!(told.contains("75000000010 parameters") && told.contains("1.09 TiB"), "{told}");
        let mut many = config("mlp, hidden: [32]");
        many.batch_size = 1 << 30;
        let few_samples = Estimate::of(&many, form, 100);
        assert_eq!(few_samples.batch, 100 * 65 * 4, "a batch is never larger than the data");
        let small = Estimate::of(&config("mlp, hidden: [32]"), form, 1438);
        assert!(small.check(16 << 20, None, "cpu").is_ok());
    }
}
