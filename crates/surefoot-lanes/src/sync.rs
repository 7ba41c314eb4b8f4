//! The one door to threads and time. The features `loom` and `shuttle` put a model checker's
//! primitives in the place of the standard ones, for the tests of that name.
//!
//! A model checker has no clock. There [`now`] stands still; a timed wait whose deadline is near
//! always times out, after a moment in which the lock is free: that is the race that matters, since
//! whatever the waiter waits for may happen in that moment. One whose deadline is far never does. So
//! a caller must take `timed_out` as the last word and not ask the clock again.

use std::sync::PoisonError;
pub(crate) use std::time::Instant;

#[cfg(all(feature = "loom", feature = "shuttle"))]
compile_error!("choose one model checker: `loom` or `shuttle`");

#[cfg(feature = "loom")]
pub(crate) use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

#[cfg(feature = "loom")]
pub(crate) use loom::thread::{Builder, JoinHandle};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread::{Builder, JoinHandle};
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub(crate) use std::thread::{Builder, JoinHandle};

/// Takes the lock. Nothing here panics while it holds one, so poison says nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be notified, or wakes for no reason.
pub(crate) fn wait<'m, T>(condvar: &Condvar, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be notified, for no reason, or until `deadline`; says whether that has passed.
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub(crate) fn wait_until<'m, T>(
    condvar: &Condvar,
    _mutex: &'m Mutex<T>,
    guard: MutexGuard<'m, T>,
    deadline: Instant,
) -> (MutexGuard<'m, T>, bool) {
    let left = deadline.saturating_duration_since(Instant::now());
    let (guard, _) = condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    (guard, Instant::now() >= deadline)
}

/// Times out after the lock was free, or never.
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) fn wait_until<'m, T>(
    condvar: &Condvar,
    mutex: &'m Mutex<T>,
    guard: MutexGuard<'m, T>,
    deadline: Instant,
) -> (MutexGuard<'m, T>, bool) {
    const FAR: std::time::Duration = std::time::Duration::from_secs(1800);
    if deadline > now() + FAR {
        return (wait(condvar, guard), false);
    }
    drop(guard);
    (lock(mutex), true)
}

/// The time.
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// One moment, a day ahead: the real time is past, ten days from it are far.
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) fn now() -> Instant {
    static STILL: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *STILL.get_or_init(|| Instant::now() + std::time::Duration::from_secs(24 * 3600))
}
