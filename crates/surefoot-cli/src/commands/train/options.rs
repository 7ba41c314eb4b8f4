//! Options that override keys of the configuration, and what recovery may do.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use surefoot::device::Selector;
use surefoot::device::memory::Bytes;
use surefoot::place::Precision;
use surefoot::recover::{Drill, Policy, Rung};
use surefoot_train::config::Config;

use crate::exit::Failure;
use crate::footing_args::{injected, parse_drill};

/// Each overrides a key of the configuration if it is given.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Override any key of the configuration: --set optimizer.lr=0.01
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Train for this many passes over the data
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Train for this many steps
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Samples per batch
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Random seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Threads that load samples
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The folder for checkpoints
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Device, or several in order of preference, separated by commas: cpu, gpu, gpu:1, vulkan, metal,
    /// mps, cuda
    #[arg(long, value_name = "NAMES", help_heading = RECOVERY)]
    device: Option<Selector>,
    /// Precision of matrix products and convolutions: auto, fp32, fp16 or bf16
    #[arg(long, value_name = "PRECISION", help_heading = RECOVERY)]
    precision: Option<Precision>,
    /// The most memory to use, for example 2GiB: of each device, and of the host for this process
    #[arg(long, value_name = "BYTES", help_heading = RECOVERY)]
    memory: Option<Bytes>,
    /// What to do when a device fails
    #[arg(long, value_enum, value_name = "ACTION", help_heading = RECOVERY)]
    on_fault: Option<OnFault>,
    /// Don't move to another device when the chosen one fails
    #[arg(long, help_heading = RECOVERY)]
    no_fallback: bool,
    /// Forbid a recovery step: reclaim, split, checkpoint, precision, next_device; can be given several
    /// times
    #[arg(long, value_name = "STEP", help_heading = RECOVERY)]
    forbid: Vec<Rung>,
    /// Allow recovery from out-of-memory by a lower precision
    #[arg(long, help_heading = RECOVERY)]
    allow_lower_precision: bool,
    /// Inject faults to test recovery, for example out_of_memory:step=3,count=2; can be given several
    /// times
    ///
    /// The form is KIND or KIND:SETTING=VALUE,… with the settings step (the number of the run, from
    /// 0), count (how often), op (`train step` or evaluate), device, at (before, during, between-parts
    /// or after), nth and point (for at=during: at the n-th operation, allocation or read),
    /// probability and seed. `surefoot generate --help` lists the kinds.
    ///
    /// If a fault was never injected, the program says so at the end and exits with 2.
    #[arg(long, value_name = "DRILL", value_parser = parse_drill, help_heading = RECOVERY)]
    drill: Vec<Drill>,
    /// Run in a child process that is restarted if the driver or the kernel kills it
    #[arg(long, help_heading = RECOVERY)]
    pub(super) isolate: bool,
}

const RECOVERY: &str = "Device and recovery";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnFault {
    /// Free memory, split the batch, recompute activations, change the device
    Recover,
    /// The same, but stay on the device
    Stay,
    /// Stop at the first fault
    Fail,
}

/// The keys and values of `--set KEY=VALUE`.
pub(crate) fn overrides(set: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let pair = |set: &String| {
        let (key, value) = set.split_once('=').ok_or_else(|| {
            Failure::usage(format!("--set {set} has no '='"))
                .hint("write it as --set optimizer.lr=0.01")
        })?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    set.iter().map(pair).collect()
}

impl Options {
    /// The keys that are overridden, with their values.
    pub(super) fn flags(&self) -> Result<Vec<(String, String)>, Failure> {
        let mut flags = overrides(&self.set)?;
        let mut flag = |key: &str, value: Option<String>| {
            flags.extend(value.map(|value| (key.to_owned(), value)));
        };
        flag("epochs", self.epochs.map(|n| n.to_string()));
        // A number of epochs given by hand outweighs steps in the file, and the other way round.
        flag("steps", self.epochs.map(|_| "null".to_owned()));
        flag("steps", self.steps.map(|n| n.to_string()));
        flag("batch_size", self.batch_size.map(|n| n.to_string()));
        flag("seed", self.seed.map(|n| n.to_string()));
        flag("workers", self.workers.map(|n| n.to_string()));
        flag("device", self.device.as_ref().map(|device| format!("'{device}'")));
        flag("precision", self.precision.map(|precision| precision.to_string()));
        flag("memory", self.memory.map(|bytes| bytes.0.to_string()));
        let on_fault = self.on_fault.and_then(|what| what.to_possible_value());
        flag("on_fault", on_fault.map(|what| what.get_name().to_owned()));
        Ok(flags)
    }

    /// The flags about recovery that no checkpoint holds, as they are written on a command line.
    pub(super) fn recovery_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if self.no_fallback {
            flags.push("--no-fallback".to_owned());
        }
        if self.allow_lower_precision {
            flags.push("--allow-lower-precision".to_owned());
        }
        for rung in &self.forbid {
            flags.extend(["--forbid".to_owned(), rung.to_string()]);
        }
        flags
    }

    /// The folder for checkpoints that was given by hand: as it is, since a name need not be UTF-8.
    pub(super) fn named_folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// What recovery may do: the configuration's word, then the flags'.
    pub(super) fn policy(&self, config: &Config) -> Policy {
        let mut policy = config.on_fault.policy();
        if self.allow_lower_precision && config.on_fault != surefoot_train::config::OnFault::Fail {
            policy = policy.allow_lower_precision();
        }
        if self.no_fallback {
            policy = policy.no_fallback();
        }
        self.forbid.iter().fold(policy, |policy, rung| policy.forbid(*rung))
    }

    /// The faults to inject.
    pub(super) fn drill(&self) -> Drill {
        injected(&self.drill)
    }
}
