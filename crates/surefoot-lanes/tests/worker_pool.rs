//! Work that is left to workers, with real threads and real time.
#![cfg(not(any(feature = "loom", feature = "shuttle")))]
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use surefoot_lanes::{Patience, Pool, WorkerPool};

fn workers(lanes: usize) -> (Arc<Pool>, WorkerPool) {
    let pool = Arc::new(Pool::new(lanes));
    (Arc::clone(&pool), WorkerPool::new(pool))
}

fn until(what: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !what() {
        assert!(Instant::now() < patience, "it never happened");
        std::thread::yield_now();
    }
}

#[test]
fn a_caller_that_finds_a_lane_works_itself() {
    let (pool, workers) = workers(2);
    let here = std::thread::current().id();
    let ran = workers.run(Patience::None, |lane| (lane, std::thread::current().id()));
    assert_eq!(ran, Some((0, here)));
    assert_eq!(pool.statistics().leased, 0);
}

#[test]
fn who_has_to_wait_is_served_in_turn_by_the_same_few_threads() {
    let (pool, workers) = workers(2);
    let held: Vec<_> = (0..2).map(|_| pool.lease()).collect();
    let order = Arc::new(Mutex::new(Vec::<(usize, ThreadId)>::new()));
    std::thread::scope(|scope| {
        for caller in 0..12 {
            let (workers, order) = (&workers, Arc::clone(&order));
            scope.spawn(move || {
                let work =
                    move |_| order.lock().unwrap().push((caller, std::thread::current().id()));
                assert_eq!(workers.run(Patience::Forever, work), Some(()));
            });
            until(|| workers.waiting() == caller + 1);
        }
        // One lane, so that one follows the other.
        pool.set_active(1);
        drop(held);
    });
    let (callers, threads): (Vec<_>, Vec<_>) = order.lock().unwrap().iter().copied().unzip();
    assert_eq!(callers, (0..12).collect::<Vec<_>>());
    let mut threads: Vec<_> = threads.iter().map(|id| format!("{id:?}")).collect();
    threads.sort_unstable();
    threads.dedup();
    assert!(threads.len() <= 2, "as many as lanes: {threads:?}");
    assert_eq!((pool.statistics().leased, workers.waiting()), (0, 0));
}

#[test]
fn nobody_overtakes_those_who_wait() {
    let (pool, workers) = workers(1);
    let held = pool.lease();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| workers.run(Patience::Forever, |_| ()));
        until(|| workers.waiting() == 1);
        drop(held);
        // Whoever tries finds the queue or the lane taken, until the one who waits has had it.
        until(|| workers.run(Patience::None, |_| ()).is_some());
        assert_eq!(workers.waiting(), 0);
        assert_eq!(waiting.join().unwrap(), Some(()));
    });
}

#[test]
fn work_that_was_not_begun_in_time_is_taken_back_and_what_was_begun_is_ended() {
    let (pool, workers) = workers(1);
    let held = pool.lease();
    let deadline = Instant::now() + Duration::from_millis(20);
    let ran = workers.run(Patience::Until(deadline), |_| unreachable!("it was taken back"));
    assert_eq!(ran, None::<()>);
    assert!(Instant::now() >= deadline);
    assert_eq!(workers.waiting(), 0);
    std::thread::scope(|scope| {
        let (begun, is_begun) = mpsc::channel();
        let deadline = Instant::now() + Duration::from_millis(50);
        let work = move |_| {
            begun.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            7
        };
        let workers = &workers;
        let caller = scope.spawn(move || workers.run(Patience::Until(deadline), work));
        until(|| workers.waiting() == 1);
        drop(held);
        is_begun.recv().unwrap();
        assert_eq!(caller.join().unwrap(), Some(7), "though its deadline has passed");
    });
}

#[test]
fn a_panic_is_its_callers_alone() {
    let (pool, workers) = workers(1);
    let held = pool.lease();
    std::thread::scope(|scope| {
        let workers = &workers;
        let callers: Vec<_> = (0..6)
            .map(|caller| {
                scope.spawn(move || {
                    let work = move |_| match caller % 2 {
                        0 => panic!("caller {caller}"),
                        _ => caller,
                    };
                    catch_unwind(AssertUnwindSafe(|| workers.run(Patience::Forever, work)))
                })
            })
            .collect();
        until(|| workers.waiting() == 6);
        drop(held);
        for (caller, outcome) in callers.into_iter().map(|c| c.join().unwrap()).enumerate() {
            match outcome {
                Ok(value) => assert_eq!(value, Some(caller)),
                Err(panic) => {
                    assert_eq!(panic.downcast_ref::<String>(), Some(&format!("caller {caller}")));
                }
            }
        }
    });
    assert_eq!(pool.statistics().leased, 0);
    assert_eq!(workers.run(Patience::None, |_| 1), Some(1));
}

#[test]
fn no_more_work_is_done_at_once_than_lanes_are_active() {
    let (pool, workers) = workers(8);
    let inside = Arc::new(AtomicUsize::new(0));
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let (pool, inside) = (Arc::clone(&pool), Arc::clone(&inside));
                    let work = move |_| {
                        assert!(inside.fetch_add(1, SeqCst) < pool.statistics().lanes);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    };
                    workers.run(Patience::Forever, work).unwrap();
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        for active in [1, 8, 2, 5, 1, 3] {
            pool.set_active(active);
            let before = done.load(SeqCst);
            until(|| done.load(SeqCst) >= (before + 200).min(32 * 50));
        }
    });
    assert_eq!((done.into_inner(), inside.load(SeqCst)), (32 * 50, 0));
    assert_eq!((pool.statistics().leased, workers.waiting()), (0, 0));
}

/// The threads that did `count` pieces of work which all had to wait, on `active` lanes.
fn threads_used(
    pool: &Pool,
    workers: &WorkerPool,
    count: usize,
    active: usize,
) -> HashSet<ThreadId> {
    pool.set_active(pool.statistics().lanes);
    let held: Vec<_> = std::iter::from_fn(|| pool.try_lease()).collect();
    pool.set_active(active);
    std::thread::scope(|scope| {
        let work = |_| {
            std::thread::sleep(Duration::from_millis(2));
            std::thread::current().id()
        };
        let callers: Vec<_> =
            (0..count).map(|_| scope.spawn(move || workers.run(Patience::Forever, work))).collect();
        until(|| workers.waiting() == count);
        drop(held);
        callers.into_iter().map(|caller| caller.join().unwrap().unwrap()).collect()
    })
}

#[test]
fn as_many_hands_are_awake_as_lanes_are_active() {
    let (pool, workers) = workers(4);
    assert_eq!(threads_used(&pool, &workers, 24, 4).len(), 4);
    assert_eq!(threads_used(&pool, &workers, 24, 1).len(), 1, "the others sleep");
    assert_eq!(threads_used(&pool, &workers, 24, 4).len(), 4);
}

#[test]
fn where_no_thread_can_be_hired_callers_do_the_work_in_turn() {
    // No thread gets a stack of this size, unless it asks for another one.
    const STACK: (&str, &str) = ("RUST_MIN_STACK", "140737488355328");
    if std::env::var(STACK.0).as_deref() != Ok(STACK.1) {
        let name = "where_no_thread_can_be_hired_callers_do_the_work_in_turn";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(STACK.0, STACK.1)
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
    let (pool, workers) = workers(1);
    let held = pool.lease();
    let done = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let (workers, done) = (&workers, Arc::clone(&done));
            let caller = move || {
                let work = move |_| done.fetch_add(1, SeqCst);
                assert!(workers.run(Patience::Forever, work).is_some());
            };
            std::thread::Builder::new().stack_size(1 << 20).spawn_scoped(scope, caller).unwrap();
        }
        until(|| workers.waiting() == 6);
        drop(held);
    });
    assert_eq!((done.load(SeqCst), pool.statistics().leased), (6, 0));
}
