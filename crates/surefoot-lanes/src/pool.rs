//! Lanes that are leased to one caller at a time.
//!
//! Protocol: a lane is free, leased, or on its way to a waiter; whoever gives one back hands it to
//! the caller that has waited longest, so a waiter is never overtaken and `waiters present ⇒ no
//! lane to give` holds whenever the lock is free. The lock is held for the bookkeeping only, never
//! while a lease is in use. At most `active` lanes are leased; when that number falls, leases in
//! use run to their end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::patience::Patience;
use crate::sync::{
    Arc, AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering, lock, now, wait, wait_until,
};

/// A number of lanes, leased exclusively, first come first served.
#[derive(Debug)]
pub struct Pool {
    lanes: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The lowest first: each lane that was ever used keeps memory on its device.
    free: BinaryHeap<Reverse<usize>>,
    active: usize,
    leased: usize,
    greatest_leased: usize,
    queue: VecDeque<Arc<Waiter>>,
    meter: Meter,
}

/// What is counted since the number of active lanes was set.
#[derive(Debug)]
struct Meter {
    started: Instant,
    /// Since when all active lanes are leased, if they are.
    full_since: Option<Instant>,
    full: Duration,
    full_releases: u64,
    releases: u64,
}

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

/// A caller in the queue. `lane` is written under the pool's lock, once.
#[derive(Debug)]
struct Waiter {
    lane: AtomicUsize,
    handed_over: Condvar,
}

const NO_LANE: usize = usize::MAX;

/// What a pool is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatistics {
    /// How many lanes there are.
    pub lanes: usize,
    /// How many of them may be leased at once.
    pub active: usize,
    /// How many are leased now.
    pub leased: usize,
    /// The most that were ever leased at once.
    pub greatest_leased: usize,
    /// How many callers wait.
    pub waiting: usize,
}

impl Pool {
    /// A pool of `lanes` lanes (at least one), all active.
    pub fn new(lanes: usize) -> Self {
        let lanes = lanes.max(1);
        let state = State {
            free: (0..lanes).map(Reverse).collect(),
            active: lanes,
            leased: 0,
            greatest_leased: 0,
            queue: VecDeque::new(),
            meter: Meter::new(false),
        };
        Self { lanes, state: Mutex::new(state) }
    }

    /// A lane, if one is to be had in time.
    pub fn lease_with(&self, patience: Patience) -> Option<Lease<'_>> {
        match patience {
            Patience::None => self.try_lease(),
            Patience::Until(deadline) => self.lease_until(deadline),
            Patience::Forever => Some(self.lease()),
        }
    }

    /// A lane if one is free now.
    pub fn try_lease(&self) -> Option<Lease<'_>> {
        let lane = lock(&self.state).take()?;
        Some(Lease { pool: self, lane })
    }

    /// Waits its turn for a lane.
    pub fn lease(&self) -> Lease<'_> {
        let mut state = lock(&self.state);
        if let Some(lane) = state.take() {
            return Lease { pool: self, lane };
        }
        let waiter = state.enqueue();
        loop {
            state = wait(&waiter.handed_over, state);
            if let Some(lease) = self.handed_to(&waiter) {
                return lease;
            }
        }
    }

    /// Waits its turn for a lane, but not beyond `deadline`.
    pub fn lease_until(&self, deadline: Instant) -> Option<Lease<'_>> {
        let mut state = lock(&self.state);
        if let Some(lane) = state.take() {
            return Some(Lease { pool: self, lane });
        }
        let waiter = state.enqueue();
        loop {
            let timed_out;
            (state, timed_out) = wait_until(&waiter.handed_over, &self.state, state, deadline);
            // A lane that came at the last moment is taken: it was taken off the queue for us.
            if let Some(lease) = self.handed_to(&waiter) {
                return Some(lease);
            }
            if timed_out {
                state.queue.retain(|other| !Arc::ptr_eq(other, &waiter));
                return None;
            }
        }
    }

    fn handed_to(&self, waiter: &Waiter) -> Option<Lease<'_>> {
        match waiter.lane.load(Ordering::Relaxed) {
            NO_LANE => None,
            lane => Some(Lease { pool: self, lane }),
        }
    }

    /// Changes how many lanes may be leased at once, between 1 and all of them. Waiters get what
    /// that adds; leases that are then too many run to their end.
    pub fn set_active(&self, active: usize) {
        let mut state = lock(&self.state);
        state.active = active.clamp(1, self.lanes);
        let lucky: Vec<_> = std::iter::from_fn(|| state.hand_over()).collect();
        state.meter = Meter::new(state.is_full());
        drop(state);
        lucky.iter().for_each(|waiter| waiter.handed_over.notify_one());
    }

    /// How many lanes may be leased at once.
    pub fn active(&self) -> usize {
        lock(&self.state).active
    }

    /// What the lanes did since their active number was set or the meter was restarted.
    pub fn reading(&self) -> Reading {
        lock(&self.state).meter.read()
    }

    /// Counts from now on.
    pub fn restart_meter(&self) {
        let mut state = lock(&self.state);
        state.meter = Meter::new(state.is_full());
    }

    /// What the pool is doing.
    pub fn statistics(&self) -> PoolStatistics {
        let state: MutexGuard<'_, State> = lock(&self.state);
        PoolStatistics {
            lanes: self.lanes,
            active: state.active,
            leased: state.leased,
            greatest_leased: state.greatest_leased,
            waiting: state.queue.len(),
        }
    }

    fn give_back(&self, lane: usize) {
        let mut state = lock(&self.state);
        state.meter.releases += 1;
        state.meter.full_releases += u64::from(state.is_full());
        state.free.push(Reverse(lane));
        state.leased -= 1;
        let next = state.hand_over();
        if !state.is_full() {
            state.meter.no_longer_full();
        }
        drop(state);
        if let Some(waiter) = next {
            waiter.handed_over.notify_one();
        }
    }
}

impl State {
    /// A lane for a caller that doesn't wait. Nobody is overtaken: where someone waits, there is
    /// no lane to give.
    fn take(&mut self) -> Option<usize> {
        if self.is_full() {
            return None;
        }
        let Reverse(lane) = self.free.pop()?;
        self.leased += 1;
        self.greatest_leased = self.greatest_leased.max(self.leased);
        if self.is_full() && self.meter.full_since.is_none() {
            self.meter.full_since = Some(now());
        }
        Some(lane)
    }

    fn is_full(&self) -> bool {
        self.leased >= self.active
    }

    fn enqueue(&mut self) -> Arc<Waiter> {
        let waiter =
            Arc::new(Waiter { lane: AtomicUsize::new(NO_LANE), handed_over: Condvar::new() });
        self.queue.push_back(Arc::clone(&waiter));
        waiter
    }

    /// Gives a lane to the first waiter, who is to be notified once the lock is free.
    fn hand_over(&mut self) -> Option<Arc<Waiter>> {
        if self.queue.is_empty() {
            return None;
        }
        let lane = self.take()?;
        let waiter = self.queue.pop_front()?;
        waiter.lane.store(lane, Ordering::Relaxed);
        Some(waiter)
    }
}

impl Meter {
    fn new(full: bool) -> Self {
        let started = now();
        Self {
            started,
            full_since: full.then_some(started),
            full: Duration::ZERO,
            full_releases: 0,
            releases: 0,
        }
    }

    fn no_longer_full(&mut self) {
        if let Some(since) = self.full_since.take() {
            self.full += now().saturating_duration_since(since);
        }
    }

    fn read(&self) -> Reading {
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

/// A lane that is the holder's alone until it is dropped, in a panic too.
#[derive(Debug)]
#[must_use = "the lane is given back when this is dropped"]
pub struct Lease<'p> {
    pool: &'p Pool,
    lane: usize,
}

impl Lease<'_> {
    /// Which lane it is, counted from 0.
    pub fn lane(&self) -> usize {
        self.lane
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.pool.give_back(self.lane);
    }
}
