//! How lanes are leased, compiled for, given back and counted, on the CPU, where callers take turns;
//! `SUREFOOT_TEST_DEVICE` names another device, where worker threads do.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use surefoot::device::{DeviceName, OpenDevice, Selector, open};
use surefoot::recover::{Drill, Policy};
use surefoot::{FaultKind, Footing};
use surefoot_serve::lanes::Lanes;
use testkit::cpu;

const PATIENCE: Duration = Duration::from_secs(30);

fn device() -> Arc<OpenDevice> {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => open(name.parse().unwrap()).unwrap(),
        Err(_) => cpu().unwrap(),
    }
}

fn fixed(lanes: usize) -> Lanes<&'static str> {
    Lanes::fixed(device(), lanes)
}

fn ok<T>(value: T) -> Result<T, Infallible> {
    Ok(value)
}

/// Waits until `what` holds.
fn until(what: impl Fn() -> bool) {
    let started = Instant::now();
    while !what() {
        assert!(started.elapsed() < PATIENCE, "it never happened");
        std::thread::yield_now();
    }
}

/// Leases every lane, lets `meanwhile` happen, and gives them back.
fn while_exhausted(lanes: &Lanes<&'static str>, meanwhile: impl FnOnce()) {
    lanes.run(&"warm", |_| ok(())).unwrap();
    let all = lanes.statistics().lanes;
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    std::thread::scope(|scope| {
        for _ in 0..all {
            let wait = Arc::clone(&wait);
            let hold = move |_: &_| ok(wait.lock().unwrap().recv().is_err());
            scope.spawn(move || lanes.run(&"warm", hold));
        }
        until(|| lanes.statistics().leased == all);
        meanwhile();
        drop(go_on);
    });
}

#[test]
fn without_a_lane_a_try_fails_at_once() {
    let lanes = fixed(2);
    while_exhausted(&lanes, || {
        assert_eq!(lanes.try_run(&"warm", |_| ok(1)), Ok(None));
        assert_eq!(lanes.try_run(&"new", |_| ok(1)), Ok(None), "nor is a new key compiled");
    });
    assert_eq!(lanes.try_run(&"new", |_| ok(1)), Ok(Some(1)));
}

#[test]
fn without_a_lane_a_deadline_passes() {
    let lanes = fixed(2);
    while_exhausted(&lanes, || {
        let started = Instant::now();
        let deadline = started + Duration::from_millis(20);
        assert_eq!(lanes.run_until(deadline, &"warm", |_| ok(1)), Ok(None));
        assert!(Instant::now() >= deadline);
        assert_eq!(lanes.statistics().waiting, 0);
    });
    assert_eq!(lanes.run_until(Instant::now() + PATIENCE, &"warm", |_| ok(1)), Ok(Some(1)));
}

#[test]
fn without_a_lane_a_caller_waits_its_turn() {
    let lanes = fixed(2);
    std::thread::scope(|scope| {
        let mut waiters = Vec::new();
        while_exhausted(&lanes, || {
            let lanes = &lanes;
            waiters.extend((0..6).map(|n| scope.spawn(move || lanes.run(&"warm", move |_| ok(n)))));
            until(|| lanes.statistics().waiting == 6);
        });
        for (n, waiter) in waiters.into_iter().enumerate() {
            assert_eq!(waiter.join().unwrap(), Ok(n));
        }
    });
}

#[test]
fn as_many_threads_are_inside_of_forward_as_there_are_lanes() {
    const LANES: usize = 4;
    let lanes = fixed(LANES);
    lanes.run(&"key", |_| ok(())).unwrap();
    // Each waits inside for the others: with a lock around forward they would wait for ever.
    let gate = Arc::new((Barrier::new(LANES), AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            let gate = Arc::clone(&gate);
            let forward = move |_: &_| {
                let (all_inside, inside) = &*gate;
                assert!(inside.fetch_add(1, SeqCst) < LANES);
                all_inside.wait();
                inside.fetch_sub(1, SeqCst);
                ok(())
            };
            scope.spawn(|| lanes.run(&"key", forward));
        }
    });
    assert_eq!(lanes.statistics().greatest_leased, LANES);
}

#[test]
fn the_first_run_of_a_key_is_waited_for_by_its_own_key_only() {
    let lanes = fixed(2);
    let (compiling, others) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        let (done, wait) = mpsc::channel::<()>();
        let (lanes, begun) = (&lanes, Arc::clone(&compiling));
        scope.spawn(move || {
            lanes.run(&"slow", move |_| {
                begun.wait();
                ok(wait.recv().is_err())
            })
        });
        compiling.wait();
        for _ in 0..5 {
            let others = Arc::clone(&others);
            scope.spawn(|| lanes.run(&"slow", move |_| ok(others.fetch_add(1, SeqCst))));
        }
        assert_eq!(lanes.try_run(&"slow", |_| ok(())), Ok(None));
        // They hold no lane while they wait: the second one is free for another key.
        for _ in 0..3 {
            assert_eq!(lanes.run(&"quick", |_| ok(7)), Ok(7));
        }
        assert_eq!(others.load(SeqCst), 0, "none of them has run");
        drop(done);
    });
    assert_eq!((others.load(SeqCst), lanes.compiled()), (5, 2));
}

#[test]
fn a_first_run_that_fails_or_panics_leaves_the_key_to_the_next() {
    let lanes = fixed(1);
    assert_eq!(lanes.run(&"key", |_| Err::<(), _>("no")), Err("no"));
    let outcome = catch_unwind(AssertUnwindSafe(|| lanes.run(&"key", mismatch)));
    assert!(outcome.is_err());
    assert_eq!(lanes.compiled(), 0);
    assert_eq!(lanes.run(&"key", |_| ok(3)), Ok(3));
    assert_eq!((lanes.compiled(), lanes.statistics().leased), (1, 0));
}

/// What Burn does with shapes that don't fit: it panics.
fn mismatch(device: &Device) -> Result<Vec<f32>, Infallible> {
    let [a, b] = [[2, 3], [2, 3]].map(|shape| Tensor::<2>::ones(shape, device));
    ok(a.matmul(b).into_data().try_to_vec().unwrap())
}

#[test]
fn a_panic_in_one_caller_costs_the_others_nothing() {
    let lanes = fixed(2);
    std::thread::scope(|scope| {
        for caller in 0..32 {
            let lanes = &lanes;
            scope.spawn(move || {
                if caller % 4 == 0 {
                    let run = || lanes.run(&"key", mismatch);
                    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
                } else {
                    let sum = move |device: &Device| {
                        ok(Tensor::<1>::full([64], caller, device).sum().into_scalar::<f32>())
                    };
                    assert_eq!(lanes.run(&"key", sum), Ok(64.0 * caller as f32));
                }
            });
        }
    });
    assert_eq!((lanes.statistics().leased, lanes.statistics().waiting), (0, 0));
}

/// Eight callers on two lanes under a footing on which memory runs out `times` times; how many got
/// their result and how many a fault.
fn under_drill(times: u64, policy: Policy) -> (usize, usize) {
    let lanes = fixed(2);
    let footing = Footing::builder()
        .devices(Selector::only(DeviceName::CPU))
        .policy(policy)
        .drill(Drill::times(FaultKind::OutOfMemory, times))
        .build()
        .unwrap();
    let footing = Arc::new(footing);
    let (well, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let (lanes, footing, well, failed) = (&lanes, Arc::clone(&footing), &well, &failed);
            scope.spawn(move || {
                let outcome = lanes.run(&"key", move |_| {
                    footing.run("sum", move |step| {
                        Ok(Tensor::<1>::full([64], caller, step.device()).sum())
                    })
                });
                match outcome {
                    Ok(sum) => {
                        assert_eq!(sum.value.into_scalar::<f32>(), 64.0 * caller as f32);
                        well.fetch_add(1, SeqCst);
                    }
                    Err(fault) => {
                        assert_eq!(fault.kind, FaultKind::OutOfMemory);
                        failed.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!((lanes.statistics().leased, lanes.compiled()), (0, 1));
    (well.into_inner(), failed.into_inner())
}

#[test]
fn out_of_memory_on_a_lane_is_recovered_there() {
    assert_eq!(under_drill(1, Policy::default()), (8, 0));
}

#[test]
fn out_of_memory_that_may_not_be_recovered_fails_alone() {
    assert_eq!(under_drill(3, Policy::fail()), (5, 3));
}

#[test]
fn warming_up_runs_each_key_once_and_tells_how_far_it_is() {
    let lanes = fixed(2);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let forward = move |key: &&str, _: &Device| {
        counted.fetch_add(1, SeqCst);
        if *key == "bad" { Err("it is bad") } else { Ok(()) }
    };
    lanes.run(&"b", |_| ok(())).unwrap();
    let mut told = Vec::new();
    let keys = ["a", "b", "c"];
    let ran =
        lanes.warm_up(&keys, forward.clone(), |at| told.push((at.ready, at.all, at.next.copied())));
    assert_eq!((ran, runs.load(SeqCst)), (Ok(2), 2));
    assert_eq!(told, [(0, 3, Some("a")), (1, 3, Some("b")), (2, 3, Some("c")), (3, 3, None)]);
    assert_eq!(lanes.warm_up(&["d", "bad", "e"], forward, |_| {}), Err("it is bad"));
    assert_eq!(lanes.compiled(), 4, "a, b, c, d");
}

#[test]
fn the_number_of_lanes_that_pay_is_found() {
    // A device that serves two at a time; each one more makes all of them slower.
    let lanes = Lanes::<()>::searching(device(), 16);
    let (inside, until) = (Arc::new(AtomicUsize::new(0)), Instant::now() + PATIENCE);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !lanes.has_settled() && Instant::now() < until {
                    let inside = Arc::clone(&inside);
                    lanes
                        .run(&(), move |_| {
                            let at_once = inside.fetch_add(1, SeqCst) + 1;
                            let crowd = at_once.saturating_sub(2) as u32;
                            std::thread::sleep(Duration::from_millis(3) * (1 + 2 * crowd));
                            inside.fetch_sub(1, SeqCst);
                            ok(())
                        })
                        .unwrap();
                }
            });
        }
    });
    assert!(lanes.has_settled());
    assert_eq!(lanes.statistics().active, 2);
}
