//! Lanes that are leased to one caller at a time.
//!
//! Protocol: a lane is free, leased, or on its way to a waiter; whoever gives one back hands it to
//! the caller that has waited longest, so a waiter is never overtaken and `waiters present ⇒ no
//! lane to give` holds whenever the lock is free. The lock is held for the bookkeeping only, never
//! while a lease is in use. At most `active` lanes are leased; when that number falls, leases in
//! use run to their end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::sync::{
    Arc, AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering, lock, wait, wait_until,
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
        };
        Self { lanes, state: Mutex::new(state) }
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
        drop(state);
        lucky.iter().for_each(|waiter| waiter.handed_over.notify_one());
    }

    /// How many lanes may be leased at once.
    pub fn active(&self) -> usize {
        lock(&self.state).active
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
        state.free.push(Reverse(lane));
        state.leased -= 1;
        let next = state.hand_over();
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
        if self.leased >= self.active {
            return None;
        }
        let Reverse(lane) = self.free.pop()?;
        self.leased += 1;
        self.greatest_leased = self.greatest_leased.max(self.leased);
        Some(lane)
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
