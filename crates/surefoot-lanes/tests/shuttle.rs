//! Random schedules of more threads than loom can take, by shuttle:
//! `cargo test --release -p surefoot-lanes --features shuttle --test shuttle`.
//!
//! Shuttle fails a schedule that deadlocks, so "nobody waits for ever" is part of each of them.
#![cfg(feature = "shuttle")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::{Duration, Instant};

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use shuttle::thread;
use surefoot_lanes::{BatchQueue, Next, OnceMap, Patience, Pool, Refused, WorkerPool};

/// In a model a wait this long never times out, ten days from now never come, and now is past.
const LONG: Duration = Duration::from_secs(10 * 24 * 3600);

/// Half of the schedules switch anywhere, half at the few places where most bugs show.
fn check(schedules: usize, body: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(body.clone(), schedules / 2);
    shuttle::check_pct(body, schedules / 2, 3);
}

/// Runs `bodies` on threads of their own.
fn all(bodies: impl IntoIterator<Item = Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = bodies.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn share_three_lanes_that_come_and_go(slice: Duration) {
    check(20_000, move || {
        let pool = Arc::new(Pool::with_slice(3, slice));
        let held: Arc<[AtomicUsize; 3]> = Arc::default();
        let callers = (0..8).map(|caller| -> Box<dyn FnOnce() + Send> {
            let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
            Box::new(move || {
                for turn in 0..2 {
                    let lease = match (caller + turn) % 4 {
                        0 | 1 => Some(pool.lease()),
                        2 => pool.lease_until(Instant::now()),
                        _ => pool.try_lease(),
                    };
                    if let Some(lease) = lease {
                        assert_eq!(held[lease.lane()].fetch_add(1, SeqCst), 0, "one holder");
                        thread::yield_now();
                        held[lease.lane()].fetch_sub(1, SeqCst);
                    }
                }
            })
        });
        let settings = Arc::clone(&pool);
        let climb: Box<dyn FnOnce() + Send> =
            Box::new(move || [1, 3, 1, 2].into_iter().for_each(|n| settings.set_active(n)));
        all(callers.chain([climb]));
        let after = pool.statistics();
        assert_eq!((after.leased, after.waiting, after.active), (0, 0, 2));
        let (one, two) = (pool.try_lease(), pool.try_lease());
        assert!(one.is_some() && two.is_some() && pool.try_lease().is_none());
    });
}

#[test]
fn eight_callers_share_three_lanes_that_are_handed_over() {
    share_three_lanes_that_come_and_go(Duration::ZERO);
}

#[test]
fn eight_callers_share_three_lanes_that_are_left_free() {
    share_three_lanes_that_come_and_go(Duration::from_millis(1));
}

#[test]
fn lanes_that_are_given_back_reach_all_who_wait() {
    for slice in [Duration::ZERO, Duration::from_millis(1)] {
        check(10_000, move || {
            let pool = Arc::new(Pool::with_slice(4, slice));
            let held: Vec<_> = (0..4).map(|_| pool.lease()).collect();
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    let pool = Arc::clone(&pool);
                    // None gives its lane back, so that none can live on another's.
                    thread::spawn(move || std::mem::forget(pool.lease()))
                })
                .collect();
            drop(held);
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            assert_eq!(pool.statistics().leased, 4);
        });
    }
}

#[test]
fn hands_serve_eight_callers_while_lanes_come_and_go() {
    check(20_000, || {
        let pool = Arc::new(Pool::new(3));
        let workers = Arc::new(WorkerPool::new(Arc::clone(&pool)));
        let held: Arc<[AtomicUsize; 3]> = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let callers = (0..8).map(|caller| -> Box<dyn FnOnce() + Send> {
            let (workers, held, done) =
                (Arc::clone(&workers), Arc::clone(&held), Arc::clone(&done));
            Box::new(move || {
                for turn in 0..2 {
                    let (held, counted) = (Arc::clone(&held), Arc::clone(&done));
                    let work = move |lane: usize| {
                        assert_eq!(held[lane].fetch_add(1, SeqCst), 0, "one at a time");
                        thread::yield_now();
                        held[lane].fetch_sub(1, SeqCst);
                        counted.fetch_add(1, SeqCst);
                    };
                    let patience = match (caller + turn) % 4 {
                        0 | 1 => Patience::Forever,
                        2 => Patience::Until(Instant::now()),
                        _ => Patience::None,
                    };
                    let before = done.load(SeqCst);
                    let ran = workers.run(patience, work).is_some();
                    assert!(ran || !matches!(patience, Patience::Forever));
                    assert!(!ran || done.load(SeqCst) > before);
                }
            })
        });
        let settings = Arc::clone(&pool);
        let climb: Box<dyn FnOnce() + Send> =
            Box::new(move || [1, 3, 1, 2].into_iter().for_each(|n| settings.set_active(n)));
        all(callers.chain([climb]));
        // The worker that gave up its turn to nobody may still be about to give its lane back.
        let waiting = workers.waiting();
        drop(workers);
        let after = pool.statistics();
        assert_eq!((after.leased, waiting, after.active), (0, 0, 2));
        assert!(done.load(SeqCst) >= 8, "all who wait for ever");
    });
}

#[test]
fn eight_callers_make_each_key_once_though_some_fail() {
    check(20_000, || {
        let map = Arc::new(OnceMap::<usize, usize>::new());
        let tries = Arc::new(AtomicUsize::new(0));
        all((0..8usize).map(|caller| -> Box<dyn FnOnce() + Send> {
            let (map, tries) = (Arc::clone(&map), Arc::clone(&tries));
            Box::new(move || {
                let key = caller % 2;
                let outcome = map.get_or_try_make(&key, || {
                    thread::yield_now();
                    match (key, tries.fetch_add(1, SeqCst)) {
                        (0, _) => Ok(0),
                        (_, nth) if nth < 3 => Err("too early"),
                        (_, nth) => Ok(nth),
                    }
                });
                assert!(outcome.is_err() || outcome == Ok(map.get(&key).unwrap()));
            })
        }));
        let made = usize::from(map.get(&0).is_some()) + usize::from(map.get(&1).is_some());
        assert_eq!(map.initialisations(), made as u64);
        assert!(map.get(&0).is_some());
    });
}

#[test]
fn requests_of_four_clients_come_out_once_whatever_happens_to_them() {
    check(20_000, || {
        let queue = Arc::new(BatchQueue::<usize, usize>::new(3));
        let (out, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(4)));
        let clients = (0..4usize).map(|client| -> Box<dyn FnOnce() + Send> {
            let (queue, out, left) = (Arc::clone(&queue), Arc::clone(&out), Arc::clone(&left));
            Box::new(move || {
                for turn in 0..2 {
                    let deadline = match (client + turn) % 3 {
                        0 => None,
                        1 => Some(Instant::now() + LONG),
                        _ => Some(Instant::now()),
                    };
                    match queue.push(client % 2, 1, deadline) {
                        Ok(ticket) if client == 3 => {
                            out.fetch_add(queue.cancel(&ticket).unwrap_or(0), SeqCst);
                        }
                        Ok(_) => {}
                        Err(Refused::Full(one)) => {
                            out.fetch_add(one, SeqCst);
                        }
                        Err(Refused::Closed(_)) => panic!("it is open"),
                    }
                }
                // The last one closes.
                if left.fetch_sub(1, SeqCst) == 1 {
                    queue.close();
                }
            })
        });
        let consumers = (0..2).map(|consumer| -> Box<dyn FnOnce() + Send> {
            let (queue, out) = (Arc::clone(&queue), Arc::clone(&out));
            Box::new(move || {
                loop {
                    let wait = if consumer == 0 { LONG } else { Duration::ZERO };
                    match queue.next_batch(2, wait) {
                        Next::Batch(batch) => {
                            assert!((1..=2).contains(&batch.requests.len()));
                            out.fetch_add(batch.requests.len(), SeqCst);
                            if consumer == 0 {
                                out.fetch_add(queue.join(&batch.key, 1).len(), SeqCst);
                            }
                        }
                        Next::Expired(late) => {
                            out.fetch_add(late.len(), SeqCst);
                        }
                        Next::Closed => return,
                    }
                }
            })
        });
        all(clients.chain(consumers).collect::<Vec<_>>());
        assert_eq!(out.load(SeqCst), 8);
        assert_eq!((queue.len(), queue.in_flight()), (0, 0));
    });
}
