//! Threads that help with short products and do not sleep in between.
//!
//! Decoding a token is some dozens of products of 20 to 100 µs. To wake a sleeping thread takes as long, so helpers wait for the
//! next product awake, for [`AWAKE`], and sleep only then. There is one set of helpers in the process, as many as rayon has
//! threads, less the one that calls. Whoever finds it in use, or calls from one of rayon's threads, shares its work out by rayon.
//! What is computed between two products, such as attention, is best shared out here as well ([`share_out`]): rayon's threads would
//! have to be woken for it, and would find the helpers awake on their cores.
//!
//! The protocol: the caller puts a [`Job`] into `job` and raises `generation`; everybody, the caller included, takes numbers of parts
//! from `next` until there are none; the caller waits until `done` says that all parts are done. A helper that is
//! late finds no part left; the caller waits until it has let go of the job, so that nothing of the work is left when the call ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a helper waits awake.
const AWAKE: Duration = Duration::from_micros(150);
/// Looks at the generation between two looks at the clock.
const LOOKS: usize = 64;

type Work = dyn Fn(usize) + Send + Sync;

/// Parts of a product, by number.
struct Job {
    work: Box<Work>,
    parts: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    panicked: AtomicBool,
}

impl Job {
    /// Does parts until none is left.
    fn help(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| (self.work)(part))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            // What the part wrote is seen by who sees this.
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits until all parts are done. A helper that was taken off its core needs one to come back to.
    fn wait(&self) {
        let mut looks = 0_usize;
        while self.done.load(Ordering::Acquire) < self.parts {
            looks += 1;
            if looks < 4096 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

#[derive(Default)]
struct Shared {
    generation: AtomicU64,
    job: Mutex<Option<Arc<Job>>>,
    /// Helpers that sleep. They look at the generation once more while they hold it.
    asleep: Mutex<usize>,
    woken: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn run_helper(&self) {
        let mut seen = 0;
        loop {
            seen = self.next_generation(seen);
            let job = locked(&self.job).clone();
            if let Some(job) = job {
                job.help();
            }
        }
    }

    /// Waits until the generation is another than `seen`.
    fn next_generation(&self, seen: u64) -> u64 {
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                let generation = self.generation.load(Ordering::Acquire);
                if generation != seen {
                    return generation;
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() > AWAKE {
                break;
            }
        }
        let mut asleep = locked(&self.asleep);
        loop {
            // The caller raises the generation before it asks who sleeps.
            let generation = self.generation.load(Ordering::SeqCst);
            if generation != seen {
                return generation;
            }
            *asleep += 1;
            asleep = self.woken.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            *asleep -= 1;
        }
    }

    fn publish(&self, job: &Arc<Job>) {
        *locked(&self.job) = Some(Arc::clone(job));
        self.generation.fetch_add(1, Ordering::SeqCst);
        if *locked(&self.asleep) > 0 {
            self.woken.notify_all();
        }
    }
}

/// The helpers; none where there is but one thread to compute with.
fn helpers() -> Option<&'static Shared> {
    static HELPERS: OnceLock<Option<Arc<Shared>>> = OnceLock::new();
    let made = HELPERS.get_or_init(|| {
        let shared = Arc::new(Shared::default());
        let mut any = false;
        for number in 1..rayon::current_num_threads() {
            let shared = Arc::clone(&shared);
            let name = format!("product-{number}");
            let thread = std::thread::Builder::new().name(name);
            any |= thread.spawn(move || shared.run_helper()).is_ok();
        }
        any.then_some(shared)
    });
    made.as_deref()
}

/// Does `work` for each of `parts` numbers, from 0 on, on this thread and on those that wait awake for short products. `work` has been
/// dropped when this returns. `false`, with nothing done, where there are no such threads to be had: there is but one
/// thread to compute with, another caller has them, or this is one of rayon's threads, which are as many. A panic in `work` reaches the caller
/// once all parts are done.
pub fn share_out(parts: usize, work: impl Fn(usize) + Send + Sync + 'static) -> bool {
    static IN_USE: Mutex<()> = Mutex::new(());
    if rayon::current_thread_index().is_some() {
        return false;
    }
    let _use = match IN_USE.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    let Some(shared) = helpers() else { return false };
    let job = Arc::new(Job {
        work: Box::new(work),
        parts,
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        panicked: AtomicBool::new(false),
    });
    shared.publish(&job);
    job.help();
    job.wait();
    *locked(&shared.job) = None;
    // Nobody takes hold of it any more; who has it yet lets go as soon as it runs.
    let mut looks = 0_usize;
    let mut job = job;
    let job = loop {
        match Arc::try_unwrap(job) {
            Ok(job) => break job,
            Err(held) => job = held,
        }
        looks += 1;
        if looks < 4096 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    };
    if job.panicked.load(Ordering::Relaxed) {
        panic!("a part of a product panicked");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many jobs one after the other, with pauses in which helpers fall asleep: each part is done exactly once.
    #[test]
    fn every_part_is_done_once_whether_helpers_are_awake_or_asleep() {
        for round in 0..300_usize {
            let parts = 1 + round % 7;
            let counts: Arc<Vec<AtomicUsize>> =
                Arc::new((0..parts).map(|_| AtomicUsize::new(0)).collect());
            let shared = Arc::clone(&counts);
            let done = share_out(parts, move |part| {
                shared[part].fetch_add(1, Ordering::Relaxed);
            });
            let expected = usize::from(done);
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == expected));
            if round % 50 == 0 {
                std::thread::sleep(2 * AWAKE);
            }
        }
    }

    /// What the work holds can be taken back at once, whatever a late helper does.
    #[test]
    fn nothing_of_the_work_is_left_when_the_call_ends() {
        let held = Arc::new(AtomicUsize::new(0));
        for round in 0..2000 {
            let shared = Arc::clone(&held);
            share_out(1 + round % 3, move |_| {
                shared.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(Arc::strong_count(&held), 1, "round {round}");
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_and_the_next_product_works() {
        let caught = catch_unwind(|| {
            share_out(4, |part| {
                assert!(part != 2, "on purpose");
            })
        });
        // Without helpers nothing was done.
        assert!(caught.is_err() || caught.is_ok_and(|done| !done));
        let count = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&count);
        let done = share_out(5, move |_| {
            shared.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), if done { 5 } else { 0 });
    }

    /// Products of several threads at once: who finds the helpers in use is told so.
    #[test]
    fn several_callers_do_not_wait_for_each_other() {
        let total = Arc::new(AtomicUsize::new(0));
        let expected: usize = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..4)
                .map(|_| {
                    let total = Arc::clone(&total);
                    scope.spawn(move || {
                        let mut done = 0;
                        for _ in 0..100 {
                            let total = Arc::clone(&total);
                            done += 3 * usize::from(share_out(3, move |_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            }));
                        }
                        done
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().unwrap_or(0)).sum()
        });
        assert_eq!(total.load(Ordering::Relaxed), expected);
    }
}
