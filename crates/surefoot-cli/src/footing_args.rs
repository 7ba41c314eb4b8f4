//! The options of every command that runs work on a device, and the `Footing` that they describe.

use std::sync::{Mutex, Once, PoisonError};

use clap::{Args, ValueEnum};
use surefoot::device::memory::Bytes;
use surefoot::device::{Selector, discover, is_in_build, select, supervisor};
use surefoot::journal::Journal;
use surefoot::place::Precision;
use surefoot::recover::{Drill, DrillError, Policy, Rung};
use surefoot::{Footing, FootingBuilder};

use crate::exit::Failure;
use crate::terminal::note;

/// Where work runs, in what precision and memory, and what recovery may do.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device and recovery")]
pub(crate) struct FootingArgs {
    /// Device, or several in order of preference, separated by commas: cpu, gpu, gpu:1, vulkan, metal,
    /// mps, cuda. Commands that run a model can also distribute its blocks over several devices, joined
    /// by plus signs: gpu:0+gpu:1, or gpu=20+cpu=12 with the number of blocks on each
    #[arg(long, value_name = "NAMES", default_value = "auto", value_parser = select)]
    pub(crate) device: Selector,
    /// Precision of matrix products and convolutions: auto, fp32, fp16 or bf16
    #[arg(long, value_name = "PRECISION", default_value = "auto")]
    pub(crate) precision: Precision,
    /// The most memory to use, for example 2GiB: of each device, and of the host for this process
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: Option<Bytes>,
    /// What to do when a device fails
    #[arg(long, value_enum, value_name = "ACTION", default_value = "recover")]
    on_fault: OnFault,
    /// Don't move to another device when the chosen one fails
    #[arg(long)]
    no_fallback: bool,
    /// Forbid a recovery step: reclaim, split, checkpoint, precision, stream, cpu_segment, next_device;
    /// can be given several times
    #[arg(long, value_name = "STEP")]
    forbid: Vec<Rung>,
    /// Allow recovery from out-of-memory by a lower precision
    #[arg(long)]
    allow_lower_precision: bool,
    /// Inject faults to test recovery, for example out_of_memory:step=3,count=2; can be given several
    /// times
    ///
    /// The form is KIND or KIND:SETTING=VALUE,… with the settings step (the number of the run, from
    /// 0), count (how often), op (the operation), device, at (before, during, between-parts or after),
    /// nth and point (for at=during: at the n-th operation, allocation or read), probability and
    /// seed.
    ///
    /// Operations: `train step` and evaluate in train; forward, generate, embed and predict in the
    /// commands of the same name; decode and embed in serve; fingerprint in fingerprint, compare,
    /// identify and verify; `block 0`, `block 1`, … and head for single parts of a model.
    ///
    /// Kinds: out_of_memory, device_mismatch, dtype_mismatch, unsupported_dtype, unsupported_op,
    /// placeholder_storage, device_lost, driver_or_init, kernel_compile, command_buffer,
    /// shape_mismatch, numeric, data_loading, model_loading, state_lost, not_device_related.
    ///
    /// If a fault was never injected, the program says so at the end and exits with 2.
    #[arg(long, value_name = "DRILL", value_parser = parse_drill)]
    drill: Vec<Drill>,
    /// Run in a child process that is restarted if the driver or the kernel kills it
    #[arg(long)]
    pub(crate) isolate: bool,
}

/// The drills of all footings of this process. A command may build several footings; whether a drill
/// has struck is known only when the command has ended.
static INJECTED: Mutex<Vec<Drill>> = Mutex::new(Vec::new());

/// The drills that struck in none of the footings that had them, as they could be written. A process
/// that replaces one that died doesn't know what struck that one, so it names none.
pub(crate) fn drills_that_never_struck() -> Vec<String> {
    if supervisor::inherited().attempt > 0 {
        return Vec::new();
    }
    let drills = INJECTED.lock().unwrap_or_else(PoisonError::into_inner);
    let strikes: Vec<_> = drills.iter().flat_map(Drill::strikes).collect();
    let mut idle: Vec<String> = Vec::new();
    for rule in strikes.iter().map(|strike| &strike.rule) {
        let struck = strikes.iter().any(|other| other.rule == *rule && other.struck > 0);
        if !struck && !idle.contains(rule) {
            idle.push(rule.clone());
        }
    }
    idle
}

/// Refuses devices that are to be used together, for work that runs on one at a time.
pub(crate) fn one_device(device: &Selector) -> Result<(), Failure> {
    match device {
        Selector::Together { .. } => {
            Err(Failure::usage(format!("--device {device} is for commands that run a model"))
                .because("this one runs on one device at a time")
                .hint("separate devices by commas for an order of preference: --device gpu,cpu"))
        }
        Selector::Auto | Selector::Chain(_) => Ok(()),
    }
}

/// One drill of several, which is remembered until the command has ended.
pub(crate) fn injected(drills: &[Drill]) -> Drill {
    let drill = drills.iter().cloned().fold(Drill::default(), Drill::and);
    if !drill.is_empty() {
        INJECTED.lock().unwrap_or_else(PoisonError::into_inner).push(drill.clone());
    }
    drill
}

pub(crate) fn parse_drill(text: &str) -> Result<Drill, DrillError> {
    text.parse()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnFault {
    /// Try the recovery steps in order
    Recover,
    /// Stop at the first fault
    Fail,
}

impl FootingArgs {
    /// A builder with these options, for work that runs on one device at a time.
    pub(crate) fn footing(&self, journal: Journal) -> Result<FootingBuilder, Failure> {
        one_device(&self.device)?;
        self.model_footing(journal)
    }

    /// A builder with these options, for a model, which can be laid over several devices.
    pub(crate) fn model_footing(&self, journal: Journal) -> Result<FootingBuilder, Failure> {
        let drill = injected(&self.drill);
        self.name_missing_devices();
        let builder = Footing::builder()
            .devices(self.device.clone())
            .precision(self.precision)
            .policy(self.policy())
            .drill(drill)
            .journal(journal);
        Ok(match self.memory {
            Some(Bytes(bytes)) => builder.memory(bytes),
            None => builder,
        })
    }

    /// Notes the named devices that this build can't use or that are not there; the first usable one is taken instead.
    fn name_missing_devices(&self) {
        static ONCE: Once = Once::new();
        let Selector::Chain(names) = &self.device else { return };
        let missing: Vec<String> = names
            .iter()
            .filter(|name| !is_in_build(name.backend))
            .map(ToString::to_string)
            .collect();
        if !missing.is_empty() {
            let names = missing.join(", ");
            ONCE.call_once(|| note(&format!("note: {names} is left out: not in this build")));
        }
        static NUMBERED: Once = Once::new();
        NUMBERED.call_once(|| {
            // The first device of a backend is opened when it is needed; that there is no second is told now.
            let numbered = names.iter().filter(|name| name.index > 0 && is_in_build(name.backend));
            for name in numbered {
                if let Some(why) = discover::missing(*name) {
                    note(&format!("note: {name} is left out: {why}"));
                }
            }
        });
    }

    /// What recovery may do.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = match self.on_fault {
            OnFault::Recover => Policy::default(),
            OnFault::Fail => Policy::fail(),
        };
        if self.allow_lower_precision && self.on_fault == OnFault::Recover {
            policy = policy.allow_lower_precision();
        }
        if self.no_fallback {
            policy = policy.no_fallback();
        }
        self.forbid.iter().fold(policy, |policy, rung| policy.forbid(*rung))
    }
}
