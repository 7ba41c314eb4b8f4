//! How much the lanes of a pool do.

use std::time::Duration;

use crate::sync::{Instant, now};

/// What the lanes did since their active number was set or the meter was restarted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// How long ago that was.
    pub elapsed: Duration,
    /// How much of that time all active lanes were leased.
    pub full: Duration,
    /// How many leases ended while all active lanes were leased. Divided by `full`, that is the
    /// rate that so many lanes give, whatever the demand.
    pub full_releases: u64,
    /// How many leases ended.
    pub releases: u64,
}

/// Counts, under the pool's lock.
#[derive(Debug)]
pub(crate) struct Meter {
    started: Instant,
    /// Since when all active lanes are leased, if they are.
    full_since: Option<Instant>,
    full: Duration,
    full_releases: u64,
    releases: u64,
}

impl Meter {
    /// Counts from now, when all active lanes are leased or not.
    pub(crate) fn new(full: bool) -> Self {
        let started = now();
        Self {
            started,
            full_since: full.then_some(started),
            full: Duration::ZERO,
            full_releases: 0,
            releases: 0,
        }
    }

    pub(crate) fn ended(&mut self, while_full: bool) {
        self.releases += 1;
        self.full_releases += u64::from(while_full);
    }

    /// Takes note of whether all active lanes are leased.
    pub(crate) fn full(&mut self, full: bool) {
        match (full, self.full_since) {
            (true, None) => self.full_since = Some(now()),
            (false, Some(since)) => {
                self.full += now().saturating_duration_since(since);
                self.full_since = None;
            }
            _ => {}
        }
    }

    pub(crate) fn read(&self) -> Reading {
        let now = now();
        let running = self.full_since.map(|since| now.saturating_duration_since(since));
        Reading {
            elapsed: now.saturating_duration_since(self.started),
            full: self.full + running.unwrap_or_default(),
            full_releases: self.full_releases,
            releases: self.releases,
        }
    }
}
