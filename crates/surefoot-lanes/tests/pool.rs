//! Leasing with real threads and real time.
#![cfg(not(any(feature = "loom", feature = "shuttle")))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use surefoot_lanes::Pool;

const SOON: Duration = Duration::from_millis(20);

/// Waits until `count` callers are in the pool's queue.
fn until_waiting(pool: &Pool, count: usize) {
    let patience = Instant::now() + Duration::from_secs(10);
    while pool.statistics().waiting != count {
        assert!(Instant::now() < patience, "{:?}", pool.statistics());
        std::thread::yield_now();
    }
}

#[test]
fn each_lane_is_leased_once_and_try_fails_when_none_is_left() {
    let pool = Pool::new(3);
    let leases: Vec<_> = (0..3).map(|_| pool.try_lease().unwrap()).collect();
    let mut lanes: Vec<_> = leases.iter().map(|lease| lease.lane()).collect();
    lanes.sort_unstable();
    assert_eq!(lanes, [0, 1, 2]);
    assert!(pool.try_lease().is_none());
    drop(leases);
    assert!(pool.try_lease().is_some());
    assert_eq!(pool.statistics().greatest_leased, 3);
}

#[test]
fn a_deadline_ends_the_wait_and_leaves_the_queue() {
    let pool = Pool::new(1);
    let held = pool.lease();
    let started = Instant::now();
    assert!(pool.lease_until(started + SOON).is_none());
    assert!(started.elapsed() >= SOON);
    assert_eq!(pool.statistics().waiting, 0);
    // One that has passed already is a try.
    assert!(pool.lease_until(started).is_none());
    drop(held);
    assert!(pool.lease_until(started).is_some());
}

#[test]
fn a_lane_that_comes_in_time_ends_the_wait() {
    let pool = Pool::new(1);
    let held = pool.lease();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            pool.lease_until(Instant::now() + Duration::from_secs(30)).map(|lease| lease.lane())
        });
        until_waiting(&pool, 1);
        drop(held);
        assert_eq!(waiter.join().unwrap(), Some(0));
    });
}

#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let pool = Pool::new(1);
    let order = Mutex::new(Vec::new());
    let held = pool.lease();
    std::thread::scope(|scope| {
        for caller in 0..16 {
            let (pool, order) = (&pool, &order);
            scope.spawn(move || {
                let _lease = pool.lease();
                order.lock().unwrap().push(caller);
            });
            until_waiting(pool, caller + 1);
        }
        drop(held);
    });
    assert_eq!(order.into_inner().unwrap(), (0..16).collect::<Vec<_>>());
}

#[test]
fn a_caller_that_comes_back_does_not_overtake_one_that_waits() {
    let pool = Pool::new(1);
    let held = pool.lease();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lease = pool.lease();
            until_waiting(&pool, 1);
            drop(lease);
        });
        until_waiting(&pool, 1);
        drop(held);
        // The waiter has it now, though it may not have woken yet.
        assert!(pool.try_lease().is_none());
        drop(pool.lease());
        waiter.join().unwrap();
    });
}

#[test]
fn a_panic_gives_the_lane_back() {
    let pool = Pool::new(1);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _lease = pool.lease();
        panic!("on purpose");
    }));
    assert!(outcome.is_err());
    assert_eq!(pool.statistics().leased, 0);
    assert!(pool.try_lease().is_some());
}

#[test]
fn fewer_active_lanes_take_effect_as_leases_end_and_more_at_once() {
    let pool = Pool::new(4);
    let mut leases: Vec<_> = (0..4).map(|_| pool.lease()).collect();
    pool.set_active(2);
    leases.truncate(2);
    assert!(pool.try_lease().is_none(), "two are leased, two are allowed");
    leases.truncate(1);
    assert!(pool.try_lease().is_some());
    pool.set_active(0);
    assert_eq!(pool.active(), 1, "one is always left");
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| pool.lease().lane())).collect();
        until_waiting(&pool, 3);
        pool.set_active(100);
        assert_eq!(pool.active(), 4);
        waiters.into_iter().for_each(|waiter| assert!(waiter.join().unwrap() < 4));
    });
    assert_eq!(pool.statistics().leased, 1);
}

#[test]
fn many_short_lived_threads_share_few_lanes_and_no_two_share_one() {
    share_few_lanes(Pool::new);
    share_few_lanes(|lanes| Pool::with_slice(lanes, Duration::from_millis(1)));
}

fn share_few_lanes(make: impl Fn(usize) -> Pool) {
    const LANES: usize = 3;
    let pool = make(LANES);
    let held: [AtomicUsize; LANES] = Default::default();
    for _round in 0..20 {
        let barrier = Barrier::new(64);
        std::thread::scope(|scope| {
            for caller in 0..64 {
                let (pool, held, barrier) = (&pool, &held, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for turn in 0..8 {
                        // Every way of leasing, mixed.
                        let lease = match (caller + turn) % 3 {
                            0 => Some(pool.lease()),
                            1 => pool.lease_until(Instant::now() + Duration::from_micros(200)),
                            _ => pool.try_lease(),
                        };
                        if let Some(lease) = lease {
                            let inside = held[lease.lane()].fetch_add(1, Ordering::SeqCst);
                            assert_eq!(inside, 0, "a lane has one holder");
                            std::thread::sleep(Duration::from_micros(10));
                            held[lease.lane()].fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        let after = pool.statistics();
        assert_eq!((after.leased, after.waiting), (0, 0));
    }
    assert_eq!(pool.statistics().greatest_leased, LANES);
}

#[test]
fn the_meter_counts_what_ends_while_all_lanes_are_in_use() {
    let pool = Pool::new(3);
    pool.set_active(2);
    let one = pool.lease();
    std::thread::sleep(SOON);
    assert_eq!(pool.reading().full, Duration::ZERO, "one of two is in use");
    let two = pool.lease();
    std::thread::sleep(SOON);
    drop(two);
    let full = pool.reading().full;
    assert!(full >= SOON);
    drop(one);
    let reading = pool.reading();
    assert_eq!((reading.releases, reading.full_releases, reading.full), (2, 1, full));
    assert!(reading.elapsed >= 2 * SOON);
    pool.restart_meter();
    assert_eq!(pool.reading().releases, 0);
}

#[test]
fn short_leases_change_hands_once_a_slice_and_everyone_gets_a_share() {
    const CALLERS: usize = 8;
    let changes = |slice: Duration| {
        let pool = Pool::with_slice(1, slice);
        // Who had it last, how often it changed hands, and how often each one had it.
        let seen = Mutex::new((CALLERS, 0u64, [0u64; CALLERS]));
        let barrier = Barrier::new(CALLERS);
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (pool, seen, barrier) = (&pool, &seen, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let until = Instant::now() + Duration::from_millis(300);
                    while Instant::now() < until {
                        let _lease = pool.lease();
                        let busy = Instant::now() + Duration::from_micros(20);
                        while Instant::now() < busy {}
                        let mut seen = seen.lock().unwrap();
                        seen.1 += u64::from(seen.0 != caller);
                        seen.0 = caller;
                        seen.2[caller] += 1;
                    }
                });
            }
        });
        let (_, changes, leases) = seen.into_inner().unwrap();
        assert!(leases.iter().all(|had| *had > 0), "{leases:?}");
        changes as f64 / leases.iter().sum::<u64>() as f64
    };
    let (handed, sliced) = (changes(Duration::ZERO), changes(Duration::from_millis(1)));
    assert!(sliced < handed / 3.0, "{sliced} of the leases changed hands, without slice {handed}");
}

#[test]
fn a_lane_left_free_in_vain_is_taken_by_the_one_that_waits() {
    let pool = Pool::with_slice(1, Duration::from_millis(1));
    // Callers that come once: nobody comes back for a lane that was left free.
    for _ in 0..4 {
        let held = pool.lease();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..6).map(|_| scope.spawn(|| drop(pool.lease()))).collect();
            until_waiting(&pool, 6);
            drop(held);
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        });
    }
    assert_eq!((pool.statistics().leased, pool.statistics().waiting), (0, 0));
}
