//! Threads that run work on the lanes of a pool for callers that would have to wait for a lane.
//!
//! Protocol: a caller that finds a lane free while nobody waits leases it and works itself. Any
//! other caller leaves its work in the queue and sleeps until it is done. A worker leases a lane,
//! runs the work that has waited longest, returns the lane, wakes the caller, and goes on. At most
//! as many workers are awake as lanes are active, and at least one while there is work; the last
//! one to fall asleep is the first to be woken.
//!
//! Reason: a lane that passes from caller to caller is idle until the next caller has woken, and
//! the more callers there are, the longer the operating system takes for that. Workers stay awake
//! as long as there is work, so only the caller itself waits for its own wake-up.
//!
//! If the operating system refuses another thread, the caller works as a worker for one turn:
//! there are as many turns as there is work.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::patience::Patience;
use crate::pool::{Lease, Pool};
use crate::sync::{Arc, Builder, Condvar, JoinHandle, Mutex, lock, wait, wait_until};

/// Workers for the lanes of one pool. Work comes to them through [`WorkerPool::run`]; a caller that
/// leases lanes from the pool directly does not wait in their queue.
#[derive(Debug)]
pub struct WorkerPool {
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
    workers: Vec<Worker>,
    /// The workers that sleep, in the order in which they fell asleep.
    asleep: Vec<usize>,
    closing: bool,
}

#[derive(Debug)]
struct Worker {
    wake: Arc<Condvar>,
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

impl WorkerPool {
    /// Workers for `pool`. Their threads are started when there is work for them.
    pub fn new(pool: Arc<Pool>) -> Self {
        let state = State {
            queue: VecDeque::new(),
            next_ticket: 0,
            workers: Vec::new(),
            asleep: Vec::new(),
            closing: false,
        };
        Self { shared: Arc::new(Shared { pool, state: Mutex::new(state) }) }
    }

    /// Runs `work` on a lane, on this thread or on a worker's, in turn. Returns nothing if no lane
    /// was free in time; once work has begun it runs to its end. If it panics, so does this.
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
        let helped = call.is_some() || self.start_worker(&mut state) || state.awake() > 0;
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
                // A worker that has it may need this lock before it is done with the other.
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

    /// Takes work back that no worker has begun. Returns whether there was any.
    fn withdraw(&self, ticket: u64) -> bool {
        let mut state = lock(&self.shared.state);
        let before = state.queue.len();
        state.queue.retain(|job| job.ticket != ticket);
        state.queue.len() < before
    }

    /// Starts one more worker if none sleeps and a lane is active for it. Returns whether it did.
    fn start_worker(&self, state: &mut State) -> bool {
        let nth = state.workers.len();
        if !state.asleep.is_empty() || nth >= self.shared.pool.active() {
            return false;
        }
        let call = Arc::new(Condvar::new());
        let (shared, called) = (Arc::clone(&self.shared), Arc::clone(&call));
        let body = move || shared.work(nth, &called);
        let thread = Builder::new().name(format!("lane worker {nth}")).spawn(body);
        thread.map(|thread| state.workers.push(Worker { wake: call, thread })).is_ok()
    }
}

impl State {
    fn awake(&self) -> usize {
        self.workers.len() - self.asleep.len()
    }

    /// Takes the worker that fell asleep last off the list, if one more may be awake.
    fn call(&mut self, active: usize) -> Option<Arc<Condvar>> {
        if self.awake() >= active {
            return None;
        }
        self.asleep.pop().map(|nth| Arc::clone(&self.workers[nth].wake))
    }
}

impl Shared {
    /// What the `nth` worker does until the pool is closed.
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

    /// Runs the work that has waited longest.
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
impl Drop for WorkerPool {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.closing = true;
        state.asleep.clear();
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        workers.iter().for_each(|worker| worker.wake.notify_one());
        // One that panicked has told so; there is nothing left to do about it here.
        workers.into_iter().for_each(|worker| drop(worker.thread.join()));
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
