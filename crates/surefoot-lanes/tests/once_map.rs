//! One initialisation per key, with real threads.
#![cfg(not(any(feature = "loom", feature = "shuttle")))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use surefoot_lanes::{Begun, OnceMap, Patience};

#[test]
fn all_callers_get_what_the_first_one_made() {
    let (map, made, barrier) = (OnceMap::new(), AtomicUsize::new(0), Barrier::new(32));
    std::thread::scope(|scope| {
        for caller in 0..32usize {
            let (map, made, barrier) = (&map, &made, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let key = caller % 4;
                let value = map.get_or_make(&key, || {
                    made.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    key * 10
                });
                assert_eq!(value, key * 10);
            });
        }
    });
    assert_eq!(made.into_inner(), 4);
    assert_eq!(map.initialisations(), 4);
    assert_eq!(map.len(), 4);
}

#[test]
fn another_key_does_not_wait() {
    let map = OnceMap::new();
    // The outer one is still being made while the inner one is asked for.
    let outer = map.get_or_make(&"outer", || map.get_or_make(&"inner", || 1) + 1);
    assert_eq!((outer, map.get(&"inner")), (2, Some(1)));
}

#[test]
fn after_a_failure_the_next_caller_tries() {
    let map = OnceMap::new();
    assert_eq!(map.get_or_try_make(&1, || Err::<u32, _>("no")), Err("no"));
    assert_eq!(map.get(&1), None);
    assert_eq!(map.get_or_try_make(&1, || Ok::<_, &str>(7)), Ok(7));
    assert_eq!(map.initialisations(), 1);
}

#[test]
fn after_a_panic_the_callers_that_wait_try() {
    let (map, tries) = (OnceMap::new(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    map.get_or_make(&"key", || {
                        let nth = tries.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(2));
                        assert!(nth >= 3, "on purpose");
                        nth
                    })
                }));
                assert!(outcome.is_err() || outcome.is_ok_and(|value| value == 3));
            });
        }
    });
    assert_eq!(tries.into_inner(), 4, "three panics, one value");
}

#[test]
fn a_forgotten_key_is_made_anew() {
    let map = OnceMap::new();
    assert_eq!(map.get_or_make(&'a', || 1), 1);
    assert_eq!(map.forget(&'a'), Some(1));
    assert_eq!(map.forget(&'a'), None);
    assert_eq!(map.get_or_make(&'a', || 2), 2);
    assert_eq!(map.initialisations(), 2);
}

#[test]
fn all_but_one_are_forgotten_and_what_is_being_made_is_not() {
    let map = OnceMap::new();
    for key in ['a', 'b', 'c'] {
        map.get_or_make(&key, || 1);
    }
    let Begun::Mine(turn) = map.begin(&'d', Patience::None) else { panic!("nobody makes it") };
    map.forget_others(&'b');
    assert_eq!((map.get(&'a'), map.get(&'b'), map.get(&'c')), (None, Some(1), None));
    turn.finish(4);
    assert_eq!(map.get(&'d'), Some(4));
}

#[test]
fn one_without_patience_is_told_that_another_makes_it() {
    let map = OnceMap::<_, u32>::new();
    let Begun::Mine(turn) = map.begin(&'a', Patience::None) else { panic!("nobody makes it") };
    assert!(matches!(map.begin(&'a', Patience::None), Begun::Busy));
    let started = Instant::now();
    let soon = Duration::from_millis(10);
    assert!(matches!(map.begin(&'a', Patience::Until(started + soon)), Begun::Busy));
    assert!(started.elapsed() >= soon);
    assert!(matches!(map.begin(&'b', Patience::None), Begun::Mine(_)));
    turn.finish(7);
    assert!(matches!(map.begin(&'a', Patience::None), Begun::Made(7)));
}
