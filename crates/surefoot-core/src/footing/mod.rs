//! What a process runs its work on: the chain of usable devices, their health, the memory budget,
//! the policy and the journal. A [`Footing`] is built once and shared by reference among all threads
//! that run work.
//!
//! - `builder.rs` chooses the devices and opens the first;
//! - `chain.rs` opens the others when they are needed, and keeps the health of each;
//! - `memory.rs` is the one authority that says how many bytes may still be allocated.

mod builder;
mod chain;
mod memory;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use crate::device::DeviceName;
use crate::device::health::Health;
use crate::engine::{Engine, Failure};
use crate::fault::{BoxError, Fault, PanicRecord};
use crate::journal::Journal;
use crate::precision::{Precision, Resolved};
use crate::recover::{Confirm, CpuSegments, Drill, Outcome, Policy, SplitMemory, Step, Task};

pub use builder::FootingBuilder;
use chain::Link;
pub(crate) use chain::Ready;
pub use memory::Room;

/// Built once; shared by reference among all threads that run work.
#[derive(Debug)]
pub struct Footing<E: Engine> {
    engine: E,
    chain: Vec<Link<E>>,
    /// How many devices from the start of the chain on are used together; 1 where one is.
    pub(crate) together: usize,
    /// How many parts of the work each of them gets, if that was said.
    parts: Option<Vec<usize>>,
    reason: String,
    precision: Precision,
    memory: Option<u64>,
    cpu: OnceLock<Ready<E>>,
    pub(crate) policy: Policy,
    journal: Journal,
    pub(crate) drill: Drill,
    pub(crate) splits: SplitMemory,
    pub(crate) segments: CpuSegments,
    pub(crate) first_parts: usize,
}

impl<E: Engine> Footing<E> {
    /// Runs `work` as one unit that is caught, classified and recovered. See
    /// [`recover`](crate::recover) for the protocol, [`Footing::task`] for work that can do more.
    pub fn run<T: Confirm<E>>(
        &self,
        name: impl Into<Cow<'static, str>>,
        work: impl FnMut(&Step<'_, E>) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        self.task(name).run(work)
    }

    /// Describes a piece of work: what it takes and which rungs it can use.
    pub fn task(&self, name: impl Into<Cow<'static, str>>) -> Task<'_, E> {
        Task::new(self, name.into())
    }

    /// What a failure of `operation` was, for work that runs without a guard.
    pub fn classify(&self, operation: &str, failure: Failure) -> Fault {
        match failure {
            // Raised as a fault by code that had no way to return it.
            Failure::Panic(PanicRecord { fault: Some(fault), .. }) => *fault,
            failure => self.engine.classify(operation, failure),
        }
    }

    /// The device that work starts on.
    pub fn device(&self) -> Result<Arc<E::Device>, Fault> {
        let at = self.usable_from(0).ok_or_else(|| self.nothing_left())?;
        Ok(Arc::clone(&self.ready(at)?.device))
    }

    /// Why the first device was chosen.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The precision of the device that work starts on.
    pub fn precision(&self) -> Result<Resolved, Fault> {
        let at = self.usable_from(0).ok_or_else(|| self.nothing_left())?;
        Ok(self.ready(at)?.precision.clone())
    }

    /// Where events go.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The devices in order, each with its health.
    pub fn health(&self) -> Vec<(DeviceName, Health)> {
        self.chain.iter().map(|link| (link.name, link.health())).collect()
    }

    /// The tensor library that this footing stands on.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The faults that strike on purpose.
    pub fn drill(&self) -> &Drill {
        &self.drill
    }

    /// The budget that was set, in bytes.
    pub fn budget(&self) -> Option<u64> {
        self.memory
    }
}
