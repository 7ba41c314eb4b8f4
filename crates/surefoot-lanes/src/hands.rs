//! Threads that work the lanes for callers that would have to wait for one.
//!
//! Protocol: a caller that finds a lane free while nobody waits leases it and works itself. Any other
//! leaves its work in the queue and sleeps until it is done. A hand leases a lane, does what
//! has waited longest, gives the lane back, wakes the caller, and goes on. At most as many hands
//! are awake as lanes are active, and at least one while there is work; the last one to sleep is the
//! first to be called.
//!
//! Why: a lane that goes from caller to caller stands still until the next one has woken, which the
//! system lets wait the longer the more callers there are. Hands stay awake as long as there is work.
//! What a caller needs to wake is then lost to the caller alone.
//!
//! Where the system gives no more threads, the caller is the hand for one turn: there are as many
//! turns as there is work.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::patience::Patience;
use crate::pool::{Lease, Pool};
use crate::sync::{Arc, Builder, Condvar, JoinHandle, Mutex, lock, wait, wait_until};

/// Hands for the lanes of one pool. Work comes to them through [`Hands::run`]; who leases lanes from
/// the pool directly does not wait in their queue.
#[derive(Debug)]
pub struct Hands {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<Pool>,
    state: Mutex<State>,
}

/// Locked before the pool's state where both are.
#[derive(Debug)]
struct State {
    queue: VecDeque<Job>,
    next_ticket: u64,
    hired: Vec<Hand>,
    /// The hands that sleep, in the order in which they went to.
    asleep: Vec<usize>,
    closing: bool,
}

#[derive(Debug)]
struct Hand {
    call: Arc<Condvar>,
    thread: JoinHandle<()>,
}

/// Work that waits. It gives the lane back before its caller learns of its end.
struct Job {
    ticket: u64,
    work: Box<dyn for<'p> FnOnce(Lease<'p>) + Send>,
}

/// Where the outcome of a job is left for its caller.
struct Slot<T> {
    outcome: Mutex<Option<Result<T, Box<dyn Any + Send>>>>,
    told: Condvar,
}

impl Hands {
    /// Hands for `pool`, which are hired when there is work for them.
    pub fn new(pool: Arc<Pool>) -> Self {
        let state = State {
            queue: VecDeque::new(),
            next_ticket: 0,
            hired: Vec::new(),
            asleep: Vec::new(),
            closing: false,
        };
        Self { shared: Arc::new(Shared { pool, state: Mutex::new(state) }) }
    }

    /// Does `work` on a lane, here or by a hand, in turn. Nothing if no lane was to be had in time;
    /// once it has begun it runs to its end. If it panics, so does this.
    pub fn run<T: Send + 'static>(
        &self,
        patience: Patience,
        work: impl FnOnce(usize) -> T + Send + 'static,
    ) -> Option<T> {
        let mut state = lock(&self.shared.state);
        if state.queue.is_empty()
            && let Some(lease) = self.shared.pool.try_lease()
        {
            drop(state);
            return Some(work(lease.lane()));
        }
        let mut deadline = match patience {
            Patience::None => return None,
            Patience::Until(deadline) => Some(deadline),
            Patience::Forever => None,
        };
        let slot = Arc::new(Slot { outcome: Mutex::new(None), told: Condvar::new() });
        let (ticket, told) = (state.next_ticket, Arc::clone(&slot));
        state.next_ticket += 1;
        let work = move |lease: Lease<'_>| {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(lease.lane())));
            drop(lease);
            *lock(&told.outcome) = Some(outcome);
            told.told.notify_one();
        };
        state.queue.push_back(Job { ticket, work: Box::new(work) });
        let call = state.call(self.shared.pool.active());
        let helped = call.is_some() || self.hire(&mut state) || state.awake() > 0;
        drop(state);
        call.inspect(|call| call.notify_one());
        if !helped {
            self.shared.turn();
        }

        let mut outcome = lock(&slot.outcome);
        loop {
            match outcome.take() {
                Some(Ok(value)) => return Some(value),
                Some(Err(panic)) => resume_unwind(panic),
                None => {}
            }
            let Some(until) = deadline else {
                outcome = wait(&slot.told, outcome);
                continue;
            };
            let (back, passed) = wait_until(&slot.told, &slot.outcome, outcome, until);
            outcome = back;
            if passed {
                // A hand that has it may need this lock before it is done with the other.
                drop(outcome);
                if self.withdraw(ticket) {
                    return None;
                }
                deadline = None;
                outcome = lock(&slot.outcome);
            }
        }
    }

    /// How many callers wait for their work to begin.
    pub fn waiting(&self) -> usize {
        lock(&self.shared.state).queue.len()
    }

    /// Takes work back that no hand has begun. Whether there was any.
    fn withdraw(&self, ticket: u64) -> bool {
        let mut state = lock(&self.shared.state);
        let before = state.queue.len();
        state.queue.retain(|job| job.ticket != ticket);
        state.queue.len() < before
    }

    /// One more hand, if none sleeps and lanes are active for it. Whether there is one.
    fn hire(&self, state: &mut State) -> bool {
        let nth = state.hired.len();
        if !state.asleep.is_empty() || nth >= self.shared.pool.active() {
            return false;
        }
        let call = Arc::new(Condvar::new());
        let (shared, called) = (Arc::clone(&self.shared), Arc::clone(&call));
        let body = move || shared.work(nth, &called);
        let thread = Builder::new().name(format!("lane hand {nth}")).spawn(body);
        thread.map(|thread| state.hired.push(Hand { call, thread })).is_ok()
    }
}

impl State {
    fn awake(&self) -> usize {
        self.hired.len() - self.asleep.len()
    }

    /// Takes the last hand that went to sleep off those who do, if one more may be awake.
    fn call(&mut self, active: usize) -> Option<Arc<Condvar>> {
        if self.awake() >= active {
            return None;
        }
        self.asleep.pop().map(|nth| Arc::clone(&self.hired[nth].call))
    }
}

impl Shared {
    /// The life of the `nth` hand.
    fn work(&self, nth: usize, call: &Condvar) {
        loop {
            let mut state = lock(&self.state);
            while state.queue.is_empty() || state.awake() > self.pool.active() {
                if state.closing {
                    return;
                }
                state.asleep.push(nth);
                while state.asleep.contains(&nth) {
                    state = wait(call, state);
                }
            }
            drop(state);
            self.turn();
        }
    }

    /// Does what has waited longest.
    fn turn(&self) {
        // It stays in the queue until there is a lane: its caller may give up meanwhile, and who
        // comes later sees that there is a queue.
        let lease = self.pool.lease();
        let mut state = lock(&self.state);
        let job = state.queue.pop_front();
        // Lanes may have become active since the last caller came.
        let another = match state.queue.is_empty() {
            true => None,
            false => state.call(self.pool.active()),
        };
        drop(state);
        another.inspect(|call| call.notify_one());
        if let Some(job) = job {
            (job.work)(lease);
        }
    }
}

/// Nobody waits any more: whoever did would still hold this.
impl Drop for Hands {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.closing = true;
        state.asleep.clear();
        let hired = std::mem::take(&mut state.hired);
        drop(state);
        hired.iter().for_each(|hand| hand.call.notify_one());
        // One that panicked has told so; there is nothing left to do about it here.
        hired.into_iter().for_each(|hand| drop(hand.thread.join()));
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
