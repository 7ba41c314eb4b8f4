//! The ways in which a model is run again to learn its noise.
//!
//! The caller runs the passes: it has the device, the budget and the guard. Other orders of
//! summation and bf16 are run twice with different disturbances, so that the spread of the noise
//! is known as well.

use surefoot_models::arch::blueprint::Blueprint;

use crate::capture::{Captures, Disturbance};
use crate::noise::{Deviations, Noise, NoiseClass, RunVariant, VariantName};

/// The precision of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassPrecision {
    /// The one that was asked for.
    Asked,
    /// fp32.
    Fp32,
    /// bf16.
    Bf16,
}

/// How one pass is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// Challenges at once.
    pub group: usize,
    /// Stream all weights, whatever would fit.
    pub streamed: bool,
    /// What products with weights are computed in.
    pub precision: PassPrecision,
    /// On the other device.
    pub elsewhere: bool,
    /// What is done to the state at every boundary.
    pub disturbance: Disturbance,
}

impl Pass {
    /// The plain pass: what fingerprints are made of.
    pub fn plain(group: usize) -> Self {
        let disturbance = Disturbance::None;
        let precision = PassPrecision::Asked;
        Self { group, streamed: false, precision, elsewhere: false, disturbance }
    }
}

/// A way of running: its name, what it changes, and its passes.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Its name.
    pub name: VariantName,
    /// What it changes.
    pub class: NoiseClass,
    /// Each is compared with the plain one.
    pub passes: Vec<Pass>,
}

/// What can be varied.
#[derive(Clone, Debug)]
pub struct Variations {
    /// Challenges that go through at once in the plain pass.
    pub group: usize,
    /// Fewer challenges at once; none if there is only one.
    pub smaller_group: Option<usize>,
    /// Whether the plain pass streams everything already.
    pub is_streamed: bool,
    /// Whether the plain pass is in fp32.
    pub is_fp32: bool,
    /// Another device to try.
    pub elsewhere: Option<String>,
}

/// The ways to run a model.
pub fn trials(blueprint: &Blueprint, variations: &Variations) -> Vec<Trial> {
    let plain = Pass::plain(variations.group);
    let trial =
        |name: VariantName, class, passes: &[Pass]| Trial { name, class, passes: passes.to_vec() };
    let longest = blueprint.hidden.max(blueprint.inner());
    let jitter = |seed| Pass { disturbance: Disturbance::summation_order(longest, seed), ..plain };
    let mut trials = vec![trial(
        "another order of summation".into(),
        NoiseClass::Arithmetic,
        &[jitter(1), jitter(2)],
    )];
    if let Some(group) = variations.smaller_group {
        let halves = Pass { group, ..plain };
        trials.push(trial("half as many at once".into(), NoiseClass::Arithmetic, &[halves]));
    }
    if !variations.is_streamed {
        let streamed = Pass { streamed: true, ..plain };
        trials.push(trial("streamed".into(), NoiseClass::Arithmetic, &[streamed]));
    }
    if let Some(device) = &variations.elsewhere {
        let elsewhere = Pass { elsewhere: true, ..plain };
        trials.push(trial(
            VariantName::OnDevice(device.clone()),
            NoiseClass::Arithmetic,
            &[elsewhere],
        ));
    }
    if !variations.is_fp32 {
        let fp32 = Pass { precision: PassPrecision::Fp32, ..plain };
        trials.push(trial("fp32".into(), NoiseClass::Rounding, &[fp32]));
    }
    let bf16 = |seed| Pass {
        precision: PassPrecision::Bf16,
        disturbance: Disturbance::Bf16 { seed },
        ..plain
    };
    trials.push(trial("bf16".into(), NoiseClass::Rounding, &[bf16(0), bf16(1)]));
    trials
}

/// Runs all trials and measures their noise.
pub fn calibrate<E>(
    plain: &Captures,
    trials: &[Trial],
    mut run: impl FnMut(&Trial, &Pass) -> Result<Captures, E>,
) -> Result<Noise, E> {
    let mut variants = Vec::with_capacity(trials.len());
    for trial in trials {
        let mut runs = Vec::with_capacity(trial.passes.len());
        for pass in &trial.passes {
            runs.push(Deviations::between(plain, &run(trial, pass)?));
        }
        variants.push(RunVariant { name: trial.name.clone(), class: trial.class, runs });
    }
    Ok(Noise { variants })
}
