//! Chooses what a footing is made of, and opens its first device.

use std::sync::OnceLock;

use super::Footing;
use super::chain::Link;
use crate::device::{DeviceName, NameError, Selector};
use crate::engine::Engine;
use crate::fault::{Fault, FaultKind};
use crate::journal::{Event, EventKind, Journal, Level};
use crate::precision::Precision;
use crate::recover::{CpuSegments, Drill, Policy, Rung, SplitMemory};
use crate::supervisor;

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
    /// `auto` goes on to the next, and so does a list with a device that this build lacks. Devices that are used
    /// together are all opened.
    pub fn build(self) -> Result<Footing<E>, Fault> {
        let inherited = supervisor::inherited();
        let mut chain = self.chain(&inherited.lost)?;
        let (together, parts) = match &self.selector {
            Selector::Together { names, parts } => {
                (chain.len(), parts.clone().filter(|_| chain.len() == names.len()))
            }
            Selector::Auto | Selector::Chain(_) => (1, None),
        };
        let fallback = self.policy.allows(Rung::NextDevice);
        if fallback && !chain.iter().any(|(name, _)| *name == DeviceName::CPU) {
            chain.push((DeviceName::CPU, "the last resort".to_owned()));
        }
        let reason = chain[0].1.clone();
        let footing = Footing {
            engine: self.engine,
            chain: chain.into_iter().map(|(name, _)| Link::new(name)).collect(),
            together,
            parts,
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
        // All that were asked for are needed, so one that is not there is told now.
        for at in 1..together {
            footing.ready(at)?;
        }
        footing.journal.with(|| {
            let event = Event::new(EventKind::Selection, "select")
                .device(first.label.clone())
                .dtype(first.precision.compute.as_str())
                .context("reason", footing.reason.clone())
                .context("hardware", footing.engine.hardware(&first.device))
                .context("in_use", footing.engine.memory_in_use(&first.device));
            let event = match together {
                1 => event,
                _ => event.context("together", self.selector.to_string()),
            };
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
            Selector::Chain(names) | Selector::Together { names, .. } => {
                let reachable = match &self.selector {
                    Selector::Together { .. } => self.all_reachable(names)?,
                    _ => self.reachable(names)?,
                };
                let mut chain: Vec<_> = reachable
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

    /// The devices of a list, all of which are needed.
    fn all_reachable(&self, names: &[DeviceName]) -> Result<Vec<DeviceName>, Fault> {
        let mut reachable = Vec::new();
        for name in names {
            let name = self.engine.resolve(*name).map_err(|error| {
                Fault::new(FaultKind::DriverOrInit, "select", error.to_string())
                    .caused_by(Box::new(error))
            })?;
            if !reachable.contains(&name) {
                reachable.push(name);
            }
        }
        Ok(reachable)
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
