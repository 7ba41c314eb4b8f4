//! What a process runs its work on: the chain of usable devices, their health, the memory budget,
//! the policy and the journal. Built once; shared by reference among all threads that run work.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::device::health::Health;
use crate::device::memory::{Budget, Reservation, host_memory};
use crate::device::{DeviceName, NameError, Selector};
use crate::engine::Engine;
use crate::fault::{BoxError, Fault, FaultKind};
use crate::journal::{Event, EventKind, Journal, Level};
use crate::place::Target;
use crate::precision::{Dtype, Precision, Resolved};
use crate::recover::{Confirm, CpuSegments, Drill, Outcome, Policy, Rung, SplitMemory, Step, Task};
use crate::supervisor;

/// Built once; shared by reference among all threads that run work.
#[derive(Debug)]
pub struct Footing<E: Engine> {
    engine: E,
    chain: Vec<Link<E>>,
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

/// One device of the chain. Those behind the first are opened when they are needed.
#[derive(Debug)]
struct Link<E: Engine> {
    name: DeviceName,
    ready: OnceLock<Result<Ready<E>, Fault>>,
    health: AtomicU8,
    /// When it last became suspect.
    suspect_since: Mutex<Option<Instant>>,
}

/// A device that is open, with its settings for this footing.
#[derive(Debug)]
pub(crate) struct Ready<E: Engine> {
    pub(crate) device: Arc<E::Device>,
    pub(crate) precision: Resolved,
    pub(crate) target: Target<E>,
    pub(crate) label: String,
    budget: Budget,
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

/// Bytes that may still be allocated, by the one authority that plans, admission, caches and
/// training ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// On the device.
    pub device: u64,
    /// On the host: the same bytes, where the device shares the host's memory.
    pub host: u64,
    /// Whether the two are the same memory.
    pub is_shared: bool,
    /// Bytes that this process holds on the device.
    pub device_in_use: u64,
    /// Bytes that this process holds on the host.
    pub host_in_use: u64,
}

impl Room {
    /// The most bytes that this process may come to hold on the device.
    pub fn device_limit(&self) -> u64 {
        self.device_in_use.saturating_add(self.device)
    }

    /// The most bytes that this process may come to hold on the host.
    pub fn host_limit(&self) -> u64 {
        self.host_in_use.saturating_add(self.host)
    }
}

/// Chooses what a footing is made of.
#[derive(Debug, Default)]
pub struct FootingBuilder<E> {
    engine: E,
    selector: Selector,
    precision: Precision,
    policy: Policy,
    journal: Journal,
    memory: Option<u64>,
    drill: Drill,
}

impl<E: Engine> FootingBuilder<E> {
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
    /// `auto` goes on to the next, and so does a list with a device that this build lacks.
    pub fn build(self) -> Result<Footing<E>, Fault> {
        let inherited = supervisor::inherited();
        let mut chain = self.chain(&inherited.lost)?;
        let fallback = self.policy.allows(Rung::NextDevice);
        if fallback && !chain.iter().any(|(name, _)| *name == DeviceName::CPU) {
            chain.push((DeviceName::CPU, "the last resort".to_owned()));
        }
        let reason = chain[0].1.clone();
        let footing = Footing {
            engine: self.engine,
            chain: chain.into_iter().map(|(name, _)| Link::new(name)).collect(),
            reason,
            precision: self.precision,
            memory: self.memory,
            cpu: OnceLock::new(),
            policy: self.policy,
            journal: self.journal,
            drill: self.drill,
            splits: SplitMemory::default(),
            segments: CpuSegments::default(),
            first_parts: 1 << inherited.memory_faults.min(16),
        };
        let first = footing.ready(0)?;
        footing.journal.with(|| {
            let event = Event::new(EventKind::Selection, "select")
                .device(first.label.clone())
                .dtype(first.precision.compute.as_str())
                .context("reason", footing.reason.clone())
                .context("hardware", footing.engine.hardware(&first.device))
                .context("in_use", footing.engine.memory_in_use(&first.device));
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
                let mut chain: Vec<_> = self
                    .reachable(names)?
                    .into_iter()
                    .filter(|name| !is_lost(name))
                    .map(|name| (name, "it was asked for".to_owned()))
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

    /// The devices of a list that this build can reach. One that it can't is passed over if
    /// another is left.
    fn reachable(&self, names: &[DeviceName]) -> Result<Vec<DeviceName>, Fault> {
        let mut reachable = Vec::new();
        let mut refused: Option<NameError> = None;
        for name in names {
            match self.engine.resolve(*name) {
                Ok(name) if reachable.contains(&name) => {}
                Ok(name) => reachable.push(name),
                Err(error) => {
                    self.pass_over(*name, &error.to_string());
                    refused.get_or_insert(error);
                }
            }
        }
        match refused {
            Some(error) if reachable.is_empty() => {
                Err(Fault::new(FaultKind::DriverOrInit, "select", error.to_string())
                    .caused_by(Box::new(error)))
            }
            _ => Ok(reachable),
        }
    }

    fn automatic(&self, is_lost: impl Fn(&DeviceName) -> bool) -> Vec<(DeviceName, String)> {
        let mut chain = Vec::new();
        let mut passed_over: Vec<String> = Vec::new();
        for candidate in self.engine.candidates() {
            let name = candidate.name;
            let why_not = match is_lost(&name) {
                true => Some(format!("{name} was lost before")),
                false => candidate.passed_over,
            };
            match why_not {
                Some(why) => {
                    self.pass_over(name, &why);
                    passed_over.push(why);
                }
                None if name == DeviceName::CPU => {
                    let why = match passed_over.is_empty() {
                        true => "it is the only device of this build".to_owned(),
                        false => passed_over.join("; "),
                    };
                    chain.push((name, why));
                }
                None => chain.push((name, format!("{name} is the best device here"))),
            }
        }
        if chain.is_empty() {
            chain.push((DeviceName::CPU, passed_over.join("; ")));
        }
        chain
    }

    fn pass_over(&self, name: DeviceName, why: &str) {
        self.journal.with(|| {
            Event::new(EventKind::Selection, "pass over")
                .level(Level::Warn)
                .device(name.to_string())
                .context("reason", why.to_owned())
        });
    }
}

impl<E: Engine> Link<E> {
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

impl<E: Engine + Default> Footing<E> {
    /// Starts with the best device, the default policy and no journal.
    pub fn builder() -> FootingBuilder<E> {
        FootingBuilder::default()
    }
}

impl<E: Engine> Footing<E> {
    /// Like [`Footing::builder`], with an engine that has settings of its own.
    pub fn builder_with(engine: E) -> FootingBuilder<E> {
        FootingBuilder {
            engine,
            selector: Selector::default(),
            precision: Precision::default(),
            policy: Policy::default(),
            journal: Journal::default(),
            memory: None,
            drill: Drill::default(),
        }
    }

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

    /// What the opened devices use and used at most.
    pub fn memory(&self) -> Vec<(DeviceName, u64, u64)> {
        let measure = |ready: &Ready<E>| {
            let device = &ready.device;
            (ready.target.name, self.engine.memory_in_use(device), self.engine.memory_peak(device))
        };
        self.opened().map(measure).collect()
    }

    /// How many bytes may still be allocated on the device that work starts on, and on the host.
    pub fn room(&self) -> Result<Room, Fault> {
        let at = self.usable_from(0).ok_or_else(|| self.nothing_left())?;
        Ok(self.room_on(self.ready(at)?))
    }

    /// How many bytes may still be allocated on a device: what is left of the budget, of the
    /// device and, where they share memory, of the host. The budget is for each device, and the
    /// host is one.
    pub(crate) fn room_on(&self, ready: &Ready<E>) -> Room {
        let host = host_memory();
        let budget_left =
            self.memory.map_or(u64::MAX, |budget| budget.saturating_sub(host.resident));
        let on_host = host.available.min(budget_left);
        let device_in_use = self.engine.memory_in_use(&ready.device);
        let promised = ready.budget.reserved();
        let within = ready.budget.limit().saturating_sub(device_in_use).saturating_sub(promised);
        let available = self.engine.memory_available(&ready.device).unwrap_or(u64::MAX);
        let on_device = within.min(available.saturating_sub(promised));
        let is_shared = self.engine.shares_host_memory(&ready.device);
        let (device, host_room) = match is_shared {
            true => (on_device.min(on_host), on_device.min(on_host)),
            false => (on_device, on_host),
        };
        Room { device, host: host_room, is_shared, device_in_use, host_in_use: host.resident }
    }

    /// Reserves bytes on the device that work starts on, before they are allocated: an
    /// out-of-memory fault if they would exceed the budget or what there is.
    pub fn reserve(&self, operation: &str, bytes: u64) -> Result<Reservation, Fault> {
        let at = self.usable_from(0).ok_or_else(|| self.nothing_left())?;
        self.reserve_on(self.ready(at)?, operation, bytes)
    }

    pub(crate) fn reserve_on(
        &self,
        ready: &Ready<E>,
        operation: &str,
        bytes: u64,
    ) -> Result<Reservation, Fault> {
        let in_use = self.engine.memory_in_use(&ready.device);
        // Other programs take from the same memory: what they hold counts as in use.
        let available = self.engine.memory_available(&ready.device).unwrap_or(u64::MAX);
        let in_use = in_use.max(ready.budget.limit().saturating_sub(available));
        ready.budget.admit(operation, bytes, in_use).map_err(|fault| fault.on(&ready.label))
    }

    /// Returns unused memory on every opened device; gives the bytes that came back.
    pub fn reclaim(&self) -> u64 {
        self.opened().map(|ready| self.reclaim_on(ready)).sum()
    }

    pub(crate) fn reclaim_on(&self, ready: &Ready<E>) -> u64 {
        let returned = self.engine.reclaim(&ready.device);
        self.journal.with(|| {
            Event::new(EventKind::Cleanup, "reclaim")
                .device(ready.label.clone())
                .bytes(returned)
                .context("in_use", self.engine.memory_in_use(&ready.device))
        });
        returned
    }

    fn opened(&self) -> impl Iterator<Item = &Ready<E>> {
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
