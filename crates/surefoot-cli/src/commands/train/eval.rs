//! `surefoot train --eval`: tests a checkpoint on its own data or on other data of the same kind.

use std::path::Path;

use serde::Serialize;
use surefoot::Footing;
use surefoot_train::checkpoint::{self, Manifest};
use surefoot_train::config::Config;
use surefoot_train::data::{self, DataSet};
use surefoot_train::evaluate::{Evaluation, evaluate};
use surefoot_train::loader::{Loading, Recipe};
use surefoot_train::model::Builtin;
use surefoot_train::parameters;
use surefoot_train::state::State;

use crate::args::{Global, flush};
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

use super::Train;
use super::failure::{bad_checkpoint, bad_config, bad_data, bad_model};
use super::show::{metric_name, metric_text};

#[derive(Serialize)]
struct Tested<'a> {
    test_accuracy: f64,
    test_loss: f64,
    samples: usize,
    skipped_samples: usize,
    steps: u64,
    device: String,
    checkpoint: &'a Path,
}

pub(super) fn eval(
    train: &Train,
    path: &Path,
    global: &Global,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    let manifest = checkpoint::read_manifest(path).map_err(bad_checkpoint)?;
    let flags = train.options.flags()?;
    let config = Config::from_entries(&manifest.config, &flags).map_err(bad_config)?;
    let data = data::open_as(&config.data, config.seed, &manifest.data).map_err(bad_data)?;
    for note in &data.notes {
        terminal.note(note);
    }
    let journal = global.open_journal()?;
    let footing = train.footing(&config, journal.clone())?;
    let (result, manifest) = test(path, &config, &data, &footing)?;
    flush(&journal, terminal);
    for what in &result.skipped {
        terminal.note(&format!("left out: {what}"));
    }
    let tested = Tested {
        test_accuracy: result.accuracy,
        test_loss: result.loss,
        samples: data.test.len() - result.skipped.len(),
        skipped_samples: result.skipped.len(),
        steps: manifest.step,
        device: footing.device().map_err(Failure::from)?.name().to_string(),
        checkpoint: path,
    };
    if global.json {
        terminal.json(&tested)?;
    } else {
        let regression = data.form().is_regression();
        terminal.result(&format!(
            "test {} {}, test loss {:.4}: {} samples, after {} steps, on {}\n",
            metric_name(regression),
            metric_text(tested.test_accuracy, regression, 2),
            tested.test_loss,
            tested.samples,
            tested.steps,
            tested.device
        ))?;
    }
    match tested.test_loss.is_finite() {
        true => Ok(Exit::Done),
        false => Err(super::not_finite(tested.test_loss)),
    }
}

fn test(
    path: &Path,
    config: &Config,
    data: &DataSet,
    footing: &Footing,
) -> Result<(Evaluation, Manifest), Failure> {
    let device = footing.device().map_err(Failure::from)?;
    let model =
        Builtin::new(&config.model, data.form(), config.seed, device.burn()).map_err(bad_model)?;
    let shapes = parameters::shapes(&model);
    let (held, manifest) = checkpoint::read(path, &shapes).map_err(bad_checkpoint)?;
    let state = State::from_held(held, model, device.name(), device.burn());
    let recipe = Recipe {
        source: data.test.clone(),
        transform: data.transform.clone(),
        on_bad_sample: config.data.on_bad_sample,
        seed: None,
        class_weights: None,
    };
    let unified = device.info.unified_memory;
    let loading = Loading::choose(config.loading, &recipe, config.batch_size, unified);
    let result = evaluate(footing, &state, &recipe, config.batch_size, loading)?;
    Ok((result, manifest))
}
