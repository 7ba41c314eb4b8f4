//! Lanes that are leased to one caller at a time.
//!
//! Protocol: a lane is free or leased. Whoever gives one back hands it to the caller that has waited
//! longest, so nobody is overtaken and where someone waits no lane is free. The lock is held for
//! the bookkeeping only, never while a lease is in use. At most `active` lanes are leased; when that
//! number falls, leases in use run to their end.
//!
//! To hand over takes a few microseconds, in which two threads change places. Where leases are that
//! short, a pool with a slice does it once a slice: as long as the head of the queue has been there
//! for less than a slice, a lane that was leased for much less is left free, and who comes first
//! takes it, mostly the caller that gave it back. The head is told once that this goes on; then it
//! looks itself after a slice, takes a lane that is free, or asks for the next one (`asks`), which is
//! then handed to it. If it finds one free, nobody came for it: then lanes are handed over again for
//! a while, the longer the oftener that happens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::meter::{Meter, Reading};
use crate::patience::Patience;
use crate::sync::{
    Arc, AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering, lock, now, wait, wait_until,
};

/// A lease is short if so many of it fit in a slice.
const SHORT: u32 = 4;
/// For how many leases lanes are handed over after one was left free in vain: at first, at most.
const PENALTY: (u64, u64) = (256, 1 << 16);

/// A number of lanes, leased exclusively, first come first served.
#[derive(Debug)]
pub struct Pool {
    lanes: usize,
    slice: Duration,
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
    head: Head,
    /// Leases that are still to be handed over, and how many it will be the next time.
    in_vain: u64,
    penalty: u64,
    meter: Meter,
}

/// Of the first in the queue.
#[derive(Debug)]
struct Head {
    since: Instant,
    /// It knows that lanes are left free, and looks after a slice.
    looks: bool,
    /// It gets the next lane.
    asks: bool,
}

/// A caller in the queue. `lane` is written under the pool's lock, once.
#[derive(Debug)]
struct Waiter {
    lane: AtomicUsize,
    wake: Condvar,
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
    /// A pool of `lanes` lanes (at least one), all active. Nobody overtakes.
    pub fn new(lanes: usize) -> Self {
        Self::with_slice(lanes, Duration::ZERO)
    }

    /// A pool in which callers with short leases may overtake the one that has waited longest, for
    /// a `slice` of time at most.
    pub fn with_slice(lanes: usize, slice: Duration) -> Self {
        let lanes = lanes.max(1);
        let state = State {
            free: (0..lanes).map(Reverse).collect(),
            active: lanes,
            leased: 0,
            greatest_leased: 0,
            queue: VecDeque::new(),
            head: Head::new(),
            in_vain: 0,
            penalty: PENALTY.0,
            meter: Meter::new(false),
        };
        Self { lanes, slice, state: Mutex::new(state) }
    }

    /// A lane if one is free now.
    pub fn try_lease(&self) -> Option<Lease<'_>> {
        lock(&self.state).take().map(|lane| self.lend(lane))
    }

    /// Waits its turn for a lane.
    pub fn lease(&self) -> Lease<'_> {
        match self.lease_with(Patience::Forever) {
            Some(lease) => lease,
            None => unreachable!("patience without end does not run out"),
        }
    }

    /// Waits its turn for a lane, but not beyond `deadline`.
    pub fn lease_until(&self, deadline: Instant) -> Option<Lease<'_>> {
        self.lease_with(Patience::Until(deadline))
    }

    /// A lane, if one is to be had in time.
    pub fn lease_with(&self, patience: Patience) -> Option<Lease<'_>> {
        let mut state = lock(&self.state);
        if let Some(lane) = state.take() {
            return Some(self.lend(lane));
        }
        let deadline = match patience {
            Patience::None => return None,
            Patience::Until(deadline) => Some(deadline),
            Patience::Forever => None,
        };
        let waiter = state.enqueue();
        loop {
            let looks = state.is_head(&waiter) && state.head.looks && !state.head.asks;
            let look = looks.then(|| now() + self.slice);
            let mut passed = None;
            state = match look.into_iter().chain(deadline).min() {
                None => wait(&waiter.wake, state),
                Some(until) => {
                    let (state, timed_out) = wait_until(&waiter.wake, &self.state, state, until);
                    passed = timed_out.then_some(until);
                    state
                }
            };
            match waiter.lane.load(Ordering::Relaxed) {
                NO_LANE => {}
                // One that came at the last moment is taken: it is not in the queue any more.
                lane => return Some(self.lend(lane)),
            }
            if state.is_head(&waiter)
                && let Some(lane) = state.take()
            {
                if passed.is_some() {
                    state.was_in_vain();
                }
                self.leave_queue(state, &waiter);
                return Some(self.lend(lane));
            }
            if passed.is_some() && passed == deadline {
                self.leave_queue(state, &waiter);
                return None;
            }
            if passed.is_some() && state.is_head(&waiter) {
                state.head.asks = true;
            }
        }
    }

    /// Takes `waiter` off the queue. What it leaves behind is the next one's.
    fn leave_queue(&self, mut state: MutexGuard<'_, State>, waiter: &Arc<Waiter>) {
        let was_head = state.is_head(waiter);
        state.queue.retain(|other| !Arc::ptr_eq(other, waiter));
        if was_head {
            state.head = Head::new();
        }
        let lucky = state.hand_over();
        drop(state);
        wake(&lucky);
    }

    fn lend(&self, lane: usize) -> Lease<'_> {
        let since = (!self.slice.is_zero()).then(now);
        Lease { pool: self, lane, since }
    }

    /// Changes how many lanes may be leased at once, between 1 and all of them. Waiters get what
    /// that adds; leases that are then too many run to their end.
    pub fn set_active(&self, active: usize) {
        let mut state = lock(&self.state);
        state.active = active.clamp(1, self.lanes);
        let lucky = state.hand_over();
        state.meter = Meter::new(state.is_full());
        drop(state);
        wake(&lucky);
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
        let state = lock(&self.state);
        PoolStatistics {
            lanes: self.lanes,
            active: state.active,
            leased: state.leased,
            greatest_leased: state.greatest_leased,
            waiting: state.queue.len(),
        }
    }

    fn give_back(&self, lane: usize, since: Option<Instant>) {
        let mut state = lock(&self.state);
        let full = state.is_full();
        state.meter.ended(full);
        state.free.push(Reverse(lane));
        state.leased -= 1;
        let to_wake = match since {
            Some(since) if !state.queue.is_empty() && state.leaves_free(since, self.slice) => {
                let knew = std::mem::replace(&mut state.head.looks, true);
                state.queue.front().filter(|_| !knew).cloned().into_iter().collect()
            }
            _ => state.hand_over(),
        };
        let full = state.is_full();
        state.meter.full(full);
        drop(state);
        wake(&to_wake);
    }
}

/// Once the lock is free, so that the one who wakes finds it so.
fn wake(waiters: &[Arc<Waiter>]) {
    waiters.iter().for_each(|waiter| waiter.wake.notify_one());
}

impl State {
    fn take(&mut self) -> Option<usize> {
        if self.is_full() {
            return None;
        }
        let Reverse(lane) = self.free.pop()?;
        self.leased += 1;
        self.greatest_leased = self.greatest_leased.max(self.leased);
        self.meter.full(self.leased >= self.active);
        Some(lane)
    }

    fn is_full(&self) -> bool {
        self.leased >= self.active
    }

    fn is_head(&self, waiter: &Arc<Waiter>) -> bool {
        self.queue.front().is_some_and(|head| Arc::ptr_eq(head, waiter))
    }

    fn enqueue(&mut self) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter { lane: AtomicUsize::new(NO_LANE), wake: Condvar::new() });
        if self.queue.is_empty() {
            self.head = Head::new();
        }
        self.queue.push_back(Arc::clone(&waiter));
        waiter
    }

    /// Gives lanes to the first waiters, as long as there are both: the next head knows nothing of
    /// lanes that were left free for the one before it. They are to be woken once the lock is free.
    fn hand_over(&mut self) -> Vec<Arc<Waiter>> {
        let mut lucky = Vec::new();
        while !self.queue.is_empty()
            && let Some(lane) = self.take()
            && let Some(waiter) = self.queue.pop_front()
        {
            waiter.lane.store(lane, Ordering::Relaxed);
            self.head = Head::new();
            lucky.push(waiter);
        }
        lucky
    }

    /// Whether a lane that was leased at `since` is left for who comes first.
    fn leaves_free(&mut self, since: Instant, slice: Duration) -> bool {
        if self.in_vain > 0 {
            self.in_vain -= 1;
            return false;
        }
        let now = now();
        let short = SHORT * now.saturating_duration_since(since) < slice;
        let over = now.saturating_duration_since(self.head.since) >= slice;
        if short && over {
            // A whole slice in which those who came were quick enough.
            self.penalty = (self.penalty / 2).max(PENALTY.0);
        }
        short && !over && !self.head.asks
    }

    fn was_in_vain(&mut self) {
        self.in_vain = self.penalty;
        self.penalty = (self.penalty * 2).min(PENALTY.1);
    }
}

impl Head {
    fn new() -> Self {
        Self { since: now(), looks: false, asks: false }
    }
}

/// A lane that is the holder's alone until it is dropped, in a panic too.
#[derive(Debug)]
#[must_use = "the lane is given back when this is dropped"]
pub struct Lease<'p> {
    pool: &'p Pool,
    lane: usize,
    /// Since when, where that matters.
    since: Option<Instant>,
}

impl Lease<'_> {
    /// Which lane it is, counted from 0.
    pub fn lane(&self) -> usize {
        self.lane
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.pool.give_back(self.lane, self.since);
    }
}
