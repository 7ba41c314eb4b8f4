//! The devices of a footing, in order of preference: those behind the first are opened when they are
//! needed, and each has a health that faults lower and successes restore.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::Footing;
use crate::device::DeviceName;
use crate::device::health::Health;
use crate::device::memory::Budget;
use crate::engine::Engine;
use crate::fault::{Fault, FaultKind};
use crate::journal::{Event, EventKind, Level};
use crate::place::Target;
use crate::precision::{Dtype, Precision, Resolved};

/// One device of the chain. Those behind the first are opened when they are needed.
#[derive(Debug)]
pub(super) struct Link<E: Engine> {
    pub(super) name: DeviceName,
    ready: OnceLock<Result<Ready<E>, Fault>>,
    health: AtomicU8,
    /// When it last became suspect.
    suspect_since: Mutex<Option<Instant>>,
}

impl<E: Engine> Link<E> {
    pub(super) fn new(name: DeviceName) -> Self {
        Self {
            name,
            ready: OnceLock::new(),
            health: AtomicU8::new(Health::Healthy as u8),
            suspect_since: Mutex::new(None),
        }
    }

    pub(super) fn health(&self) -> Health {
        match self.health.load(Ordering::Acquire) {
            0 => Health::Healthy,
            1 => Health::Suspect,
            _ => Health::Lost,
        }
    }
}

/// A device that is open, with its settings for this footing.
#[derive(Debug)]
pub(crate) struct Ready<E: Engine> {
    pub(crate) device: Arc<E::Device>,
    pub(crate) precision: Resolved,
    pub(crate) target: Target<E>,
    pub(crate) label: String,
    pub(super) budget: Budget,
}

impl<E: Engine> Ready<E> {
    fn new(engine: &E, device: Arc<E::Device>, precision: Resolved, memory: Option<u64>) -> Self {
        let name = engine.name(&device);
        // Weights stay in fp32 under mixed precision: the casts happen around heavy operations.
        let target = Target { name, device: engine.handle(&device).clone(), dtype: Dtype::F32 };
        let limit = memory.or_else(|| engine.memory_total(&device)).unwrap_or(u64::MAX);
        Self { device, precision, target, label: name.to_string(), budget: Budget::new(limit) }
    }
}

impl<E: Engine> Footing<E> {
    pub(super) fn opened(&self) -> impl Iterator<Item = &Ready<E>> {
        self.chain.iter().filter_map(|link| link.ready.get()?.as_ref().ok())
    }

    /// The device at `at` of the chain, opened if it wasn't.
    pub(crate) fn ready(&self, at: usize) -> Result<&Ready<E>, Fault> {
        let link = &self.chain[at];
        let ready = link.ready.get_or_init(|| {
            let device = self.engine.open(link.name)?;
            self.engine.probe(&device)?;
            // The precision was asked for of the first device; the others make do.
            let precision = match self.engine.settle_precision(&device, self.precision) {
                Err(_) if at > 0 => self.engine.settle_precision(&device, Precision::Fp32)?,
                other => other?,
            };
            Ok(Ready::new(&self.engine, device, precision, self.memory))
        });
        ready.as_ref().map_err(|fault| {
            link.health.store(Health::Lost as u8, Ordering::Release);
            fault.clone()
        })
    }

    /// The CPU, whether or not it is in the chain: for segments and for checking results.
    pub(crate) fn cpu(&self) -> Result<&Ready<E>, Fault> {
        if let Some(ready) = self.cpu.get() {
            return Ok(ready);
        }
        let device = self.engine.open(DeviceName::CPU)?;
        let precision = self.engine.settle_precision(&device, Precision::Fp32)?;
        let ready = Ready::new(&self.engine, device, precision, self.memory);
        Ok(self.cpu.get_or_init(|| ready))
    }

    /// The first device from `at` on that is not lost.
    pub(crate) fn usable_from(&self, at: usize) -> Option<usize> {
        (at..self.chain.len()).find(|&at| self.chain[at].health() != Health::Lost)
    }

    /// Where `name` is in the chain, unless it is lost.
    pub(crate) fn usable_named(&self, name: DeviceName) -> Option<usize> {
        let at = self.chain.iter().position(|link| link.name == name)?;
        (self.chain[at].health() != Health::Lost).then_some(at)
    }

    /// The devices that work may be laid over, in order, without those that are lost. Empty where devices are not used
    /// together.
    pub fn together(&self) -> Vec<DeviceName> {
        self.members(0).into_iter().map(|at| self.chain[at].name).collect()
    }

    /// How many parts of the work each device of [`Footing::together`] gets, if that was said and none of them was lost.
    pub fn asked_parts(&self) -> Option<&[usize]> {
        let parts = self.parts.as_deref()?;
        (self.members(0).len() == parts.len()).then_some(parts)
    }

    /// The places in the chain of devices that are used together: neither lost, nor among those that a run has left (`left`, one
    /// bit a place).
    pub(crate) fn members(&self, left: u64) -> Vec<usize> {
        if self.together < 2 {
            return Vec::new();
        }
        let is_left = |at: usize| left.checked_shr(at as u32).unwrap_or(0) & 1 == 1;
        (0..self.together)
            .filter(|&at| self.chain[at].health() != Health::Lost && !is_left(at))
            .collect()
    }

    /// Where the device that is called `label` is among those that are used together.
    pub(crate) fn member_labelled(&self, label: &str) -> Option<usize> {
        let members = if self.together < 2 { 0 } else { self.together };
        (0..members).find(|&at| self.chain[at].name.to_string() == label)
    }

    /// What the device at `at` of the chain is called.
    pub(crate) fn name_at(&self, at: usize) -> DeviceName {
        self.chain[at].name
    }

    /// A device of the chain, opened if it wasn't.
    pub fn device_named(&self, name: DeviceName) -> Result<Arc<E::Device>, Fault> {
        Ok(Arc::clone(&self.ready_named(name)?.device))
    }

    pub(super) fn ready_named(&self, name: DeviceName) -> Result<&Ready<E>, Fault> {
        let at = self.chain.iter().position(|link| link.name == name).ok_or_else(|| {
            let why = format!("{name} is not among the devices of this run");
            Fault::new(FaultKind::DriverOrInit, "select", why)
        })?;
        self.ready(at)
    }

    pub(crate) fn nothing_left(&self) -> Fault {
        let names: Vec<_> = self.chain.iter().map(|link| link.name.to_string()).collect();
        Fault::new(
            FaultKind::DeviceLost,
            "select",
            format!("every device of the chain is lost: {}", names.join(", ")),
        )
    }

    pub(crate) fn note_success(&self, at: usize) {
        let (suspect, healthy) = (Health::Suspect, Health::Suspect.after_success());
        // A device that another thread found lost meanwhile stays so.
        let _ = self.chain[at].health.compare_exchange(
            suspect as u8,
            healthy as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }

    /// A try that began at `began` failed on the device at `at` of the chain.
    pub(crate) fn note_fault(&self, at: usize, kind: FaultKind, began: Instant) {
        let link = &self.chain[at];
        let mut since = link.suspect_since.lock().unwrap_or_else(PoisonError::into_inner);
        let before = link.health();
        // What made the device suspect also failed what was under way on it then.
        let is_known = since.is_some_and(|since| began < since);
        let judged = if is_known { Health::Healthy } else { before };
        let mut after = judged.after_fault(kind).max(before);
        let is_gone = matches!(kind, FaultKind::DeviceLost | FaultKind::DriverOrInit);
        let others = self.chain.iter().filter(|other| !std::ptr::eq(*other, link));
        if after == Health::Lost
            && !is_gone
            && others.into_iter().all(|other| other.health() == Health::Lost)
        {
            // It is all that is left, and it is still there: it is tried again.
            after = before.max(Health::Suspect);
        }
        if after == before {
            return;
        }
        link.health.store(after as u8, Ordering::Release);
        if after == Health::Suspect {
            *since = Some(Instant::now());
        }
        drop(since);
        self.journal.with(|| {
            Event::new(EventKind::Note, "health")
                .level(Level::Warn)
                .device(link.name.to_string())
                .context("health", if after == Health::Lost { "lost" } else { "suspect" })
        });
    }
}
