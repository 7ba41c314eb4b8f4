//! `surefoot train --find-batch`: the largest batch that fits, and the fastest one.

use surefoot::Footing;
use surefoot::device::memory::Bytes;
use surefoot_train::config::Config;
use surefoot_train::data::DataSet;
use surefoot_train::estimate::{self, Estimate};
use surefoot_train::fit;
use surefoot_train::loader::Recipe;
use surefoot_train::model::Builtin;
use surefoot_train::state::State;
use surefoot_train::step::StepSettings;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// The most samples that `--find-batch` tries at once.
const MOST: usize = 1 << 16;

pub(super) fn find_batch(
    config: &Config,
    footing: &Footing,
    data: &DataSet,
    global: &Global,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    let device = footing.device().map_err(Failure::from)?;
    estimate::check_fits(config, data.form(), 1, &device).map_err(Failure::from)?;
    let model = Builtin::new(&config.model, data.form(), config.seed, device.burn());
    let estimate = Estimate::of(config, data.form(), data.train.len());
    let trials = fit::Trials {
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
            micro_batch: MOST,
        },
        memory: config.memory,
        sample: u64::try_from(estimate.sample).unwrap_or(u64::MAX),
        besides: 0,
        most: MOST,
        timed: true,
    };
    let fit = trials.run(|tried| {
        terminal.note(&format!(
            "{:>6} samples  {:>10.2} ms  {:>10.0} samples/s  {:>10} at most",
            tried.batch,
            1e3 * tried.seconds,
            tried.samples_per_second,
            Bytes(tried.memory)
        ));
    });
    let fit = fit.map_err(Failure::from)?;
    if global.json {
        terminal.json(&fit)?;
    } else {
        terminal.result(&format!(
            "largest batch   {}: {}\nfastest batch   {}\n",
            fit.largest, fit.limit, fit.fastest
        ))?;
    }
    Ok(Exit::Done)
}
