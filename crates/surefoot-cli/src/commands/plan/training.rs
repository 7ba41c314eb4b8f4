//! `surefoot plan CONFIG.yaml`: what training a configuration will take.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use surefoot::device::memory::Bytes;
use surefoot::recover::Policy;
use surefoot_train::config::Config;
use surefoot_train::plan::{self, TrainingPlan};
use surefoot_train::{data, estimate};

use crate::args::{Global, flush};
use crate::commands::train::failure::{bad_config, bad_data};
use crate::commands::train::options::overrides;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::terminal::Terminal;

pub(super) fn plan(
    path: &Path,
    set: &[String],
    args: &FootingArgs,
    global: &Global,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    let mut config = Config::read(path, &overrides(set)?).map_err(bad_config)?;
    if let Some(Bytes(bytes)) = args.memory {
        config.memory = Some(bytes);
    }
    let data = data::open(&config.data, config.seed).map_err(bad_data)?;
    for note in &data.notes {
        terminal.note(note);
    }
    if estimate::choose_checkpointing(&mut config, data.form()) {
        terminal.note("with gradient checkpointing: without it one row would not fit `memory` beside the weights");
    }
    let journal = global.open_journal()?;
    // What doesn't fit should fail, not be made to fit.
    let mut builder = args.footing(journal.clone())?.policy(Policy::fail());
    if let Some(bytes) = config.memory {
        builder = builder.memory(bytes);
    }
    let footing = builder.build()?;
    let planned = plan::plan(&config, &footing, &data, |tried| {
        terminal.note(&format!(
            "{:>6} samples  {:>10.2} ms  {:>10} at most",
            tried.batch,
            1e3 * tried.seconds,
            Bytes(tried.memory)
        ));
    });
    flush(&journal, terminal);
    let planned = planned?;
    match global.json {
        true => terminal.json(&planned)?,
        false => terminal.result(&told(path, &planned))?,
    }
    Ok(Exit::Done)
}

fn told(path: &Path, plan: &TrainingPlan) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}: {} parameters on {}", path.display(), plan.parameters, plan.device);
    let _ = writeln!(
        text,
        "memory        {} for weights, gradients and optimizer; {} at most with {} samples at once; {} available",
        Bytes(plan.model_bytes),
        Bytes(plan.peak_bytes),
        plan.micro_batch,
        Bytes(plan.available_bytes)
    );
    let parts = plan.batch_size.div_ceil(plan.micro_batch.max(1));
    let _ = match parts {
        1 => writeln!(text, "batch         {} samples, which fit at once", plan.batch_size),
        parts => writeln!(
            text,
            "batch         {} samples, in {parts} parts of at most {}: {}",
            plan.batch_size, plan.micro_batch, plan.limit
        ),
    };
    let _ = writeln!(text, "fastest       {} samples at once", plan.fastest_batch);
    let _ = writeln!(
        text,
        "time          {:.1} ms a step, {} steps: about {} without tests and checkpoints",
        1e3 * plan.step_seconds,
        plan.steps,
        duration(plan.run_seconds)
    );
    text
}

fn duration(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}
