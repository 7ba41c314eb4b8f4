//! What a process stands on: the chain of usable devices, their health, the budget, the policy
//! and the journal.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::device::discover::look;
use crate::device::health::Health;
use crate::device::memory::Budget;
use crate::device::{Backend, DeviceName, OpenDevice, Selector, open, supervisor};
use crate::fault::{BoxError, Fault, FaultKind};
use crate::journal::{Event, EventKind, Journal, Level};
use crate::place::{Precision, Resolved, Target};
use crate::recover::{Confirm, Drill, Policy, Rung, Segments, SplitMemory, Step, Task};

/// Built once; shared by reference among all threads that run work.
#[derive(Debug)]
pub struct Footing {
    chain: Vec<Link>,
    reason: String,
    precision: Precision,
    memory: Option<u64>,
    cpu: OnceLock<Ready>,
    pub(crate) policy: Policy,
    pub(crate) journal: Journal,
    pub(crate) drill: Drill,
    pub(crate) splits: SplitMemory,
    pub(crate) segments: Segments,
    pub(crate) first_parts: usize,
}

/// One device of the chain. Those behind the first are opened when they are needed.
#[derive(Debug)]
struct Link {
    name: DeviceName,
    ready: OnceLock<Result<Ready, Fault>>,
    health: AtomicU8,
    /// When it last became suspect.
    suspect_since: Mutex<Option<Instant>>,
}

/// A device that is open, with its settings for this footing.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) device: Arc<OpenDevice>,
    pub(crate) precision: Resolved,
    pub(crate) target: Target,
    pub(crate) label: String,
    budget: Budget,
    budgeted: bool,
}

impl Ready {
    fn new(
        device: Arc<OpenDevice>,
        precision: Resolved,
        memory: Option<u64>,
    ) -> Result<Self, Fault> {
        // Weights stay in fp32 under mixed precision: the casts happen around heavy operations.
        let target = Target::new(&device, crate::place::Dtype::F32)?;
        let label = device.name().to_string();
        let limit = memory.or(device.info.memory_total).unwrap_or(u64::MAX);
        let (budget, budgeted) = (Budget::new(limit), memory.is_some());
        Ok(Self { device, precision, target, label, budget, budgeted })
    }

    /// Promises memory to `operation` before it allocates.
    pub(crate) fn admit(
        &self,
        operation: &str,
        bytes: u64,
    ) -> Result<crate::device::memory::Reservation, Fault> {
        let in_use = if self.budgeted {
            self.device.memory_in_use()
        } else {
            // Without a budget of our own, everything else on the machine counts as well.
            let available = self.device.memory_available().unwrap_or(u64::MAX);
            self.budget.limit().saturating_sub(available)
        };
        self.budget.admit(operation, bytes, in_use).map_err(|fault| fault.on(&self.label))
    }
}

/// Chooses what a footing is made of.
#[derive(Debug, Default)]
pub struct FootingBuilder {
    selector: Selector,
    precision: Precision,
    policy: Policy,
    journal: Journal,
    memory: Option<u64>,
    drill: Drill,
}

impl FootingBuilder {
    /// Which devices, in which order.
    #[must_use]
    pub fn devices(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }

    /// Which precision heavy operations use.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Which recovery is allowed.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Where events go.
    #[must_use]
    pub fn journal(mut self, journal: Journal) -> Self {
        self.journal = journal;
        self
    }

    /// A budget of bytes that no device of the chain exceeds.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Faults on purpose.
    #[must_use]
    pub fn drill(mut self, drill: Drill) -> Self {
        self.drill = drill;
        self
    }

    /// Opens the first device. A device that was asked for by name and is not there is a fault;
    /// `auto` goes on to the next.
    pub fn build(self) -> Result<Footing, Fault> {
        let inherited = supervisor::inherited();
        let mut chain = self.chain(&inherited.lost)?;
        let fallback = self.policy.allows(Rung::NextDevice);
        if fallback && !chain.iter().any(|(name, _)| *name == DeviceName::CPU) {
            chain.push((DeviceName::CPU, "the last resort".to_owned()));
        }
        let reason = chain[0].1.clone();
        let footing = Footing {
            chain: chain.into_iter().map(|(name, _)| Link::new(name)).collect(),
            reason,
            precision: self.precision,
            memory: self.memory,
            cpu: OnceLock::new(),
            policy: self.policy,
            journal: self.journal,
            drill: self.drill,
            splits: SplitMemory::default(),
            segments: Segments::default(),
            first_parts: 1 << inherited.memory_faults.min(16),
        };
        let first = footing.ready(0)?;
        footing.journal.with(|| {
            let event = Event::new(EventKind::Selection, "select")
                .device(first.label.clone())
                .dtype(first.precision.compute.as_str())
                .context("reason", footing.reason.clone())
                .context("hardware", first.device.info.label.clone())
                .context("in_use", first.device.memory_in_use());
            match footing.memory {
                Some(budget) => event.context("budget", budget),
                None => event,
            }
        });
        Ok(footing)
    }

    /// The devices to use, each with the reason.
    fn chain(&self, lost: &[DeviceName]) -> Result<Vec<(DeviceName, String)>, Fault> {
        let is_lost = |name: &DeviceName| lost.contains(name);
        match &self.selector {
            Selector::Chain(names) => {
                let mut chain: Vec<_> = names
                    .iter()
                    .filter(|name| !is_lost(name))
                    .map(|name| (*name, "it was asked for".to_owned()))
                    .collect();
                if chain.is_empty() {
                    if !self.policy.allows(Rung::NextDevice) {
                        return Err(Fault::new(
                            FaultKind::DeviceLost,
                            "select",
                            format!("{} was lost and the policy allows no other", self.selector),
                        ));
                    }
                    chain.push((DeviceName::CPU, "the others were lost".to_owned()));
                }
                Ok(chain)
            }
            Selector::Auto => Ok(self.automatic(is_lost)),
        }
    }

    fn automatic(&self, is_lost: impl Fn(&DeviceName) -> bool) -> Vec<(DeviceName, String)> {
        let mut chain = Vec::new();
        let mut passed_over = Vec::new();
        for backend in Backend::PREFERRED.into_iter().filter(|b| b.is_in_this_build()) {
            let name = DeviceName { backend, index: 0 };
            if name == DeviceName::CPU {
                let why = match passed_over.is_empty() {
                    true => "it is the only device of this build".to_owned(),
                    false => passed_over.join("; "),
                };
                chain.push((name, why));
                continue;
            }
            let found = look(name);
            let why_not = if is_lost(&name) {
                Some(format!("{name} was lost before"))
            } else if let Some(why) = &found.unavailable {
                Some(format!("{name} is not available: {why}"))
            } else if !found.is_worth_choosing() {
                Some(format!("{name} is a driver that computes on the processor, slower than cpu"))
            } else {
                None
            };
            match why_not {
                None => chain.push((name, format!("{name} is the best device here"))),
                Some(why) => {
                    self.journal.with(|| {
                        Event::new(EventKind::Selection, "pass over")
                            .device(name.to_string())
                            .context("reason", why.clone())
                    });
                    passed_over.push(why);
                }
            }
        }
        chain
    }
}

impl Link {
    fn new(name: DeviceName) -> Self {
        Self {
            name,
            ready: OnceLock::new(),
            health: AtomicU8::new(Health::Healthy as u8),
            suspect_since: Mutex::new(None),
        }
    }

    fn health(&self) -> Health {
        match self.health.load(Ordering::Acquire) {
            0 => Health::Healthy,
            1 => Health::Suspect,
            _ => Health::Lost,
        }
    }
}

impl Footing {
    /// Starts with the best device, the default policy and no journal.
    pub fn builder() -> FootingBuilder {
        FootingBuilder::default()
    }

    /// Runs `work` as one unit that is caught, classified and recovered. See
    /// [`recover`](crate::recover) for the protocol, [`Footing::task`] for work that can do more.
    pub fn run<T: Confirm>(
        &self,
        name: impl Into<Cow<'static, str>>,
        work: impl Fn(&Step<'_>) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        self.task(name).run(work)
    }

    /// Describes a piece of work: what it takes and which rungs it can use.
    pub fn task(&self, name: impl Into<Cow<'static, str>>) -> Task<'_> {
        Task::new(self, name.into())
    }

    /// The device that work starts on.
    pub fn device(&self) -> Result<Arc<OpenDevice>, Fault> {
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

    /// What the opened devices use and used at most.
    pub fn memory(&self) -> Vec<(DeviceName, u64, u64)> {
        let ready = self.chain.iter().filter_map(|link| link.ready.get()?.as_ref().ok());
        ready.map(|r| (r.device.name(), r.device.memory_in_use(), r.device.memory_peak())).collect()
    }

    /// Returns unused memory on every opened device; gives the bytes that came back.
    pub fn clean_up(&self) -> u64 {
        let ready = self.chain.iter().filter_map(|link| link.ready.get()?.as_ref().ok());
        ready.map(|ready| self.clean(ready)).sum()
    }

    pub(crate) fn clean(&self, ready: &Ready) -> u64 {
        let returned = ready.device.clean_up();
        self.journal.with(|| {
            Event::new(EventKind::Cleanup, "clean up")
                .device(ready.label.clone())
                .bytes(returned)
                .context("in_use", ready.device.memory_in_use())
        });
        returned
    }

    /// The device at `at` of the chain, opened if it wasn't.
    pub(crate) fn ready(&self, at: usize) -> Result<&Ready, Fault> {
        let link = &self.chain[at];
        let ready = link.ready.get_or_init(|| {
            let device = open(link.name)?;
            // The precision was asked for of the first device; the others make do.
            let precision = match self.precision.resolve(&device) {
                Err(_) if at > 0 => Precision::Fp32.resolve(&device)?,
                other => other?,
            };
            Ready::new(device, precision, self.memory)
        });
        ready.as_ref().map_err(|fault| {
            link.health.store(Health::Lost as u8, Ordering::Release);
            fault.clone()
        })
    }

    /// The CPU, whether or not it is in the chain: for segments and for checking results.
    pub(crate) fn cpu(&self) -> Result<&Ready, Fault> {
        if let Some(ready) = self.cpu.get() {
            return Ok(ready);
        }
        let device = open(DeviceName::CPU)?;
        let precision = Precision::Fp32.resolve(&device)?;
        let ready = Ready::new(device, precision, self.memory)?;
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
        let after = judged.after_fault(kind).max(before);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_footing_stands_on_something_and_says_why() {
        let footing = Footing::builder().build().unwrap();
        assert!(!footing.reason().is_empty());
        assert_eq!(footing.health().last().unwrap().0, DeviceName::CPU);
        assert!(footing.memory()[0].1 > 0);
    }

    #[test]
    fn a_selection_is_an_event_with_its_reason() {
        let journal = Journal::builder().ring(8).build();
        let footing = Footing::builder()
            .devices(Selector::only(DeviceName::CPU))
            .journal(journal.clone())
            .build()
            .unwrap();
        assert_eq!(footing.reason(), "it was asked for");
        let events = journal.recent();
        assert_eq!(events[0].kind, EventKind::Selection);
        assert!(events[0].context_value("reason").is_some());
    }

    #[test]
    fn a_fault_that_strikes_all_that_is_under_way_is_one_fault() {
        let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
        let health = || footing.health()[0].1;
        let began = Instant::now();
        footing.note_fault(0, FaultKind::CommandBuffer, began);
        assert_eq!(health(), Health::Suspect);
        footing.note_fault(0, FaultKind::CommandBuffer, began);
        assert_eq!(health(), Health::Suspect, "the other try began before it was suspect");
        footing.note_success(0);
        assert_eq!(health(), Health::Healthy);
        footing.note_fault(0, FaultKind::CommandBuffer, Instant::now());
        footing.note_fault(0, FaultKind::CommandBuffer, Instant::now());
        assert_eq!(health(), Health::Lost, "a later try failed as well");
        footing.note_success(0);
        footing.note_fault(0, FaultKind::CommandBuffer, began);
        assert_eq!(health(), Health::Lost);
    }

    #[test]
    fn a_lost_device_is_lost_whenever_the_try_began() {
        let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
        let began = Instant::now();
        footing.note_fault(0, FaultKind::CommandBuffer, began);
        footing.note_fault(0, FaultKind::DeviceLost, began);
        assert_eq!(footing.health()[0].1, Health::Lost);
    }

    #[test]
    fn a_budget_refuses_before_anything_is_allocated() {
        let footing = Footing::builder().memory(1 << 20).build().unwrap();
        let fault = footing
            .run("big", |step| {
                step.admit(1 << 40)?;
                Ok(())
            })
            .unwrap_err();
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
        assert_eq!(fault.device.as_deref(), Some("cpu"));
    }

    #[test]
    fn without_a_budget_what_the_machine_lacks_is_refused_not_aborted() {
        let footing = Footing::builder().build().unwrap();
        let fault = footing
            .run("huge", |step| {
                step.admit(1 << 60)?;
                Ok(())
            })
            .unwrap_err();
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
    }
}
