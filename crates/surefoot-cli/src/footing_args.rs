//! The options of every command that runs work on a device, and the footing they describe.

use clap::{Args, ValueEnum};
use surefoot::device::memory::Bytes;
use surefoot::device::{Selector, select};
use surefoot::journal::Journal;
use surefoot::place::Precision;
use surefoot::recover::{Drill, Policy, Rung};
use surefoot::{Footing, FootingBuilder};

use crate::exit::Failure;

/// Where work runs, in what precision and memory, and what may be done when it fails.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device and recovery")]
pub(crate) struct FootingArgs {
    /// The device, or several in order of preference: cpu, gpu, gpu:1, vulkan, metal, mps, cuda
    #[arg(long, value_name = "NAMES", default_value = "auto", value_parser = select)]
    pub(crate) device: Selector,
    /// The precision of heavy operations: auto, fp32, fp16 or bf16
    #[arg(long, value_name = "PRECISION", default_value = "auto")]
    pub(crate) precision: Precision,
    /// Stay within this much memory, for example 2GiB
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: Option<Bytes>,
    /// What to do when a device fails
    #[arg(long, value_enum, value_name = "WHAT", default_value = "recover")]
    on_fault: OnFault,
    /// Stay on the device that was chosen, even if it fails
    #[arg(long)]
    no_fallback: bool,
    /// Forbid a rung of the recovery ladder: reclaim, split, checkpoint, precision, stream,
    /// cpu_segment, next_device
    #[arg(long, value_name = "RUNG")]
    forbid: Vec<Rung>,
    /// Let an out-of-memory be answered by a lower precision
    #[arg(long)]
    allow_lower_precision: bool,
    /// Make faults on purpose, to see recovery work: KIND:step=3,count=2,device=gpu,op=NAME
    #[arg(long, value_name = "DRILL")]
    drill: Option<String>,
    /// Work in a child process that is started again if a driver or the kernel kills it
    #[arg(long)]
    pub(crate) isolate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnFault {
    /// Climb down the ladder
    Recover,
    /// Stop at the first fault
    Fail,
}

impl FootingArgs {
    /// The footing that was asked for, not yet built.
    pub(crate) fn footing(&self, journal: Journal) -> Result<FootingBuilder, Failure> {
        let drill = match &self.drill {
            None => Drill::default(),
            Some(text) => text.parse().map_err(|error| {
                Failure::usage("--drill can't be understood")
                    .caused_by(&error as &surefoot::recover::DrillError)
            })?,
        };
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

    /// Whether faults are made on purpose.
    pub(crate) fn has_drill(&self) -> bool {
        self.drill.is_some()
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
