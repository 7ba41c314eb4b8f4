//! What went wrong with a run, as the user reads it.

use surefoot::FaultKind;
use surefoot_train::checkpoint::CheckpointError;
use surefoot_train::config::{Config, ResumeError};
use surefoot_train::data::DataError;
use surefoot_train::model::BuiltinError;
use surefoot_train::{ConfigError, TrainError};

use crate::exit::Failure;

use super::command::ResumeCommand;

pub(crate) fn bad_config(error: ConfigError) -> Failure {
    let failure = Failure::usage("the configuration is wrong").because(error.to_string());
    match error.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

pub(crate) fn bad_data(error: DataError) -> Failure {
    let usual = "`data.path` says where it is; --set data.path=PATH gives another place";
    let hint = error.hint.clone().unwrap_or_else(|| usual.to_owned());
    Failure::usage("the data can't be used").because(error.to_string()).hint(hint)
}

pub(super) fn bad_model(error: BuiltinError) -> Failure {
    Failure::usage("the model can't be trained").because(error.to_string())
}

pub(crate) fn bad_checkpoint(error: CheckpointError) -> Failure {
    match error {
        CheckpointError::InUse { .. } => Failure::usage("the folder can't be used")
            .because(error.to_string())
            .hint("wait until it ends, stop it, or train elsewhere: --folder DIR"),
        CheckpointError::Damaged { .. } => Failure::usage("the checkpoint can't be used")
            .because(error.to_string())
            .hint("take an earlier one of the folder: --resume=FILE"),
        _ => Failure::usage("the checkpoint can't be used").because(error.to_string()),
    }
}

pub(super) fn bad_resume(error: ResumeError) -> Failure {
    match error {
        ResumeError::Config(error) => bad_config(error),
        other => contradiction(&other.to_string()),
    }
}

/// What was asked for is not what the checkpoint is of.
pub(super) fn contradiction(why: &str) -> Failure {
    Failure::usage("the run can't continue with that: it contradicts the checkpoint")
        .because(why)
        .hint("leave it out to continue as before, or change the run with --override")
}

pub(super) fn bad_run(error: TrainError, config: &Config, command: &ResumeCommand) -> Failure {
    match error {
        TrainError::Fault { fault, step, saved } => {
            let stop = format!("the run stopped after {step} steps");
            let kind = fault.kind;
            let mut failure = Failure::from(*fault);
            failure.because.insert(0, stop);
            match (saved, kind) {
                (None, _) => failure,
                (Some(saved), FaultKind::Numeric) => failure.hint(format!(
                    "go on from the checkpoint that tested best, with a lower learning rate: \
                     {} --set optimizer.lr={} --override",
                    command.from(&saved),
                    config.optimizer.lr / 10.0
                )),
                (Some(saved), _) => {
                    failure.hint(format!("nothing is lost: {}", command.from(&saved)))
                }
            }
        }
        TrainError::Checkpoint(error) => bad_checkpoint(error),
        TrainError::RanksDiffer { differences } => {
            let mut failure =
                Failure::usage("the ranks would not train the same model on the same data");
            failure.because = differences;
            failure.hint("give every rank the same configuration, data and version of surefoot")
        }
        other => Failure::usage("the run can't continue from there")
            .because(other.to_string())
            .hint("train with the same data, seed and batch size, or without --resume"),
    }
}
