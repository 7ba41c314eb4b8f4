//! Limits how many tokens go through the model at the same time, over all threads.
//!
//! A pass takes memory in proportion to its tokens. The thread that decodes and those that embed
//! take turns where the memory is too small for all of them at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tokens that may be in passes at the same time.
#[derive(Debug)]
pub(crate) struct PassBudget {
    total: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// The number that the next caller gets, and the number whose turn it is: first come, first
    /// served, so that a large pass is not kept waiting by small ones.
    next: u64,
    turn: u64,
}

/// The part of the budget that one pass has.
#[derive(Debug)]
pub(crate) struct PassPermit<'a> {
    budget: &'a PassBudget,
    tokens: usize,
}

impl PassBudget {
    pub(crate) fn new(total: usize) -> Self {
        let state = Mutex::new(State { free: total, next: 0, turn: 0 });
        Self { total, state, changed: Condvar::new() }
    }

    /// Waits until there is room for a pass of `tokens`, or for the only pass if it has more than
    /// the whole budget.
    pub(crate) fn acquire(&self, tokens: usize) -> PassPermit<'_> {
        let tokens = tokens.min(self.total);
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        while state.turn != number || state.free < tokens {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn += 1;
        state.free -= tokens;
        drop(state);
        self.changed.notify_all();
        PassPermit { budget: self, tokens }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PassPermit<'_> {
    fn drop(&mut self) {
        self.budget.lock().free += self.tokens;
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn passes_never_exceed_the_budget_and_all_get_their_turn() {
        let budget = PassBudget::new(10);
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (budget, running, most) = (&budget, &running, &most);
                scope.spawn(move || {
                    for pass in 0..200 {
                        let tokens = 1 + (thread * 7 + pass) % 14;
                        let _permit = budget.acquire(tokens);
                        let now = running.fetch_add(tokens.min(10), Ordering::SeqCst);
                        most.fetch_max(now + tokens.min(10), Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(tokens.min(10), Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 10);
        assert_eq!(budget.lock().free, 10);
    }
}
