//! What a configuration will take before it is trained: memory, the time of a step and of the
//! run, and the batch that fits. Memory of the model is computed; the rest is measured with a few
//! steps whose results are thrown away.

use serde::Serialize;
use surefoot::{Fault, FaultKind, Footing};

use crate::config::{Config, Length};
use crate::data::DataSet;
use crate::estimate::{self, Estimate};
use crate::fit::{Fit, Trials, Tried};
use crate::loader::Recipe;
use crate::model::Builtin;
use crate::state::State;
use crate::step::StepSettings;

/// The most samples that are tried at once.
const MOST: usize = 1 << 16;

/// What training a configuration will take.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TrainingPlan {
    /// The device that was measured.
    pub device: String,
    /// The numbers in the model.
    pub parameters: u64,
    /// Weights, gradients and optimizer state, in bytes.
    pub model_bytes: u64,
    /// What can be allocated on the device, within the budget if there is one.
    pub available_bytes: u64,
    /// The budget, if there is one.
    pub budget_bytes: Option<u64>,
    /// Samples of a step, as configured.
    pub batch_size: usize,
    /// Samples that fit at once: a larger batch is run in parts of this size.
    pub micro_batch: usize,
    /// The batch with the most samples in a second.
    pub fastest_batch: usize,
    /// Why no larger batch was tried.
    pub limit: String,
    /// Seconds of a step of the configured batch, in parts if need be.
    pub step_seconds: f64,
    /// The most memory that was in use in a step of so many samples as fit.
    pub peak_bytes: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Seconds of the run's steps; tests and checkpoints come on top.
    pub run_seconds: f64,
    /// Every size that was tried.
    pub tried: Vec<Tried>,
}

/// Tries doubling batches of a configuration; `most` limits how many samples are tried at once.
pub fn try_batches(
    config: &Config,
    footing: &Footing,
    data: &DataSet,
    most: Option<usize>,
    tell: impl FnMut(&Tried),
) -> Result<Fit, Fault> {
    let device = footing.device()?;
    estimate::check_fits(config, data.form(), 1, footing)?;
    let model =
        Builtin::new(&config.model, data.form(), config.seed, device.burn()).map_err(|error| {
            Fault::new(FaultKind::ModelLoading, "open the model", error.to_string())
        })?;
    let estimate = Estimate::of(config, data.form(), data.train.len());
    let most = most.unwrap_or(MOST);
    Trials {
        footing,
        state: &State::new(model, device.name()),
        recipe: &Recipe {
            source: data.train.clone(),
            transform: data.transform.clone(),
            on_bad_sample: config.data.on_bad_sample,
            seed: Some(config.seed),
            class_weights: data.class_weights.clone(),
        },
        settings: StepSettings {
            rule: config.optimizer.rule,
            clip_norm: config.clip_norm,
            micro_batch: most,
        },
        memory: config.memory,
        sample: u64::try_from(estimate.sample).unwrap_or(u64::MAX),
        besides: 0,
        most,
        checkpointing: config.gradient_checkpointing,
        timed: true,
    }
    .run(tell)
}

/// Plans the training of a configuration on the footing's device.
pub fn plan(
    config: &Config,
    footing: &Footing,
    data: &DataSet,
    tell: impl FnMut(&Tried),
) -> Result<TrainingPlan, Fault> {
    let device = footing.device()?;
    let available_bytes = estimate::available(footing, config.memory)?;
    let samples = data.train.len();
    let estimate = Estimate::of(config, data.form(), samples);
    let batch_size = (config.batch_size * config.accumulate).min(samples.max(1));
    let fit = try_batches(config, footing, data, Some(batch_size), tell)?;
    let steps = steps(config.length, samples, batch_size);
    let largest = fit.tried.iter().rfind(|tried| tried.batch <= fit.largest);
    let (per_sample, peak_bytes) =
        largest.map_or((f64::NAN, 0), |tried| (tried.seconds / tried.batch as f64, tried.memory));
    let step_seconds = per_sample * batch_size as f64;
    Ok(TrainingPlan {
        device: device.name().to_string(),
        parameters: u64::try_from(estimate.parameters).unwrap_or(u64::MAX),
        model_bytes: u64::try_from(estimate.model).unwrap_or(u64::MAX),
        available_bytes,
        budget_bytes: config.memory,
        batch_size,
        micro_batch: fit.largest.min(batch_size),
        fastest_batch: fit.fastest,
        limit: fit.limit,
        step_seconds,
        peak_bytes,
        steps,
        run_seconds: step_seconds * steps as f64,
        tried: fit.tried,
    })
}

/// The steps of a run: a last batch of an epoch that is not full is a step too.
fn steps(length: Length, samples: usize, batch: usize) -> u64 {
    match length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => epochs * samples.div_ceil(batch.max(1)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data;

    #[test]
    fn a_plan_says_what_a_run_takes() {
        let text =
            "{data: {kind: digits}, model: {kind: mlp, hidden: [32]}, epochs: 3, batch_size: 100}";
        let config = Config::parse(text, &[]).unwrap();
        let data = data::open(&config.data, config.seed).unwrap();
        let footing = Footing::builder().build().unwrap();
        let plan = plan(&config, &footing, &data, |_| {}).unwrap();
        assert_eq!(plan.parameters, 64 * 32 + 32 + 32 * 10 + 10);
        assert_eq!(plan.model_bytes, 4 * 4 * plan.parameters, "weights, gradients, two moments");
        // 1,438 digits to train on: 15 batches an epoch.
        assert_eq!((plan.batch_size, plan.steps), (100, 45));
        assert_eq!(plan.micro_batch, 100);
        assert!(plan.step_seconds > 0.0 && plan.step_seconds < 10.0, "{plan:?}");
        assert!((plan.run_seconds / plan.step_seconds - 45.0).abs() < 1e-6);
    }
}
