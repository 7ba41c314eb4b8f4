//! Every interleaving of two or three threads, by loom:
//! `cargo test --release -p surefoot-lanes --features loom --test loom`.
//!
//! Loom fails a model that deadlocks, so "nobody waits for ever" is part of each of them. Where
//! every interleaving would take too long the number of preemptions is bounded; most bugs need
//! two.
#![cfg(feature = "loom")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;
use surefoot_lanes::{BatchQueue, Begun, Next, OnceMap, Patience, Pool, WorkerPool};

/// In a model a wait this long never times out; one of no time does, whatever happens meanwhile.
const LONG: Duration = Duration::from_secs(3600);

fn model(preemptions: Option<usize>, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(check);
}

/// Runs `bodies` on threads of their own and the last one here.
fn all(mut bodies: Vec<Box<dyn FnOnce() + Send>>) {
    let here = bodies.pop();
    let threads: Vec<_> = bodies.into_iter().map(thread::spawn).collect();
    here.into_iter().for_each(|body| body());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Each model of the pool twice: lanes are handed over, and left free for a slice, in which leases
/// that take no time are short.
mod handed_over {
    use std::time::Duration;

    #[test]
    fn a_lane_has_one_holder_and_every_caller_gets_one() {
        super::a_lane_has_one_holder_and_every_caller_gets_one(Duration::ZERO);
    }

    #[test]
    fn a_lane_handed_to_one_that_gives_up_is_not_lost() {
        super::a_lane_handed_to_one_that_gives_up_is_not_lost(Duration::ZERO);
    }

    #[test]
    fn lanes_that_become_active_reach_those_who_wait() {
        super::lanes_that_become_active_reach_those_who_wait(Duration::ZERO);
    }

    #[test]
    fn no_more_lanes_are_leased_than_are_active() {
        super::no_more_lanes_are_leased_than_are_active(Duration::ZERO);
    }

    #[test]
    fn lanes_that_are_given_back_reach_all_who_wait() {
        super::lanes_that_are_given_back_reach_all_who_wait(Duration::ZERO);
    }
}

mod left_free {
    const SLICE: std::time::Duration = std::time::Duration::from_millis(1);

    #[test]
    fn a_lane_has_one_holder_and_every_caller_gets_one() {
        super::a_lane_has_one_holder_and_every_caller_gets_one(SLICE);
    }

    #[test]
    fn a_lane_handed_to_one_that_gives_up_is_not_lost() {
        super::a_lane_handed_to_one_that_gives_up_is_not_lost(SLICE);
    }

    #[test]
    fn lanes_that_become_active_reach_those_who_wait() {
        super::lanes_that_become_active_reach_those_who_wait(SLICE);
    }

    #[test]
    fn no_more_lanes_are_leased_than_are_active() {
        super::no_more_lanes_are_leased_than_are_active(SLICE);
    }

    #[test]
    fn lanes_that_are_given_back_reach_all_who_wait() {
        super::lanes_that_are_given_back_reach_all_who_wait(SLICE);
    }
}

fn a_lane_has_one_holder_and_every_caller_gets_one(slice: Duration) {
    model(Some(4), move || {
        let pool = Arc::new(Pool::with_slice(1, slice));
        let inside = Arc::new(AtomicUsize::new(0));
        let caller = || -> Box<dyn FnOnce() + Send> {
            let (pool, inside) = (Arc::clone(&pool), Arc::clone(&inside));
            Box::new(move || {
                let _lease = pool.lease();
                assert_eq!(inside.fetch_add(1, SeqCst), 0);
                inside.fetch_sub(1, SeqCst);
            })
        };
        all(vec![caller(), caller(), caller()]);
        let after = pool.statistics();
        assert_eq!((after.leased, after.waiting, after.greatest_leased), (0, 0, 1));
    });
}

fn a_lane_handed_to_one_that_gives_up_is_not_lost(slice: Duration) {
    model(Some(4), move || {
        let pool = Arc::new(Pool::with_slice(1, slice));
        let deadline = Instant::now();
        let patient = || -> Box<dyn FnOnce() + Send> {
            let pool = Arc::clone(&pool);
            Box::new(move || drop(pool.lease()))
        };
        let hasty = Arc::clone(&pool);
        all(vec![patient(), patient(), Box::new(move || drop(hasty.lease_until(deadline)))]);
        let after = pool.statistics();
        assert_eq!((after.leased, after.waiting), (0, 0));
        assert!(pool.try_lease().is_some());
    });
}

fn lanes_that_become_active_reach_those_who_wait(slice: Duration) {
    model(Some(4), move || {
        let pool = Arc::new(Pool::with_slice(2, slice));
        pool.set_active(1);
        let held = pool.lease();
        let waiter = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || drop(pool.lease()))
        };
        let other = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.set_active(2))
        };
        // The one lane that was active stays leased, so the waiter needs the other.
        waiter.join().unwrap();
        other.join().unwrap();
        drop(held);
        assert_eq!(pool.statistics().leased, 0);
    });
}

fn no_more_lanes_are_leased_than_are_active(slice: Duration) {
    model(Some(4), move || {
        let pool = Arc::new(Pool::with_slice(2, slice));
        let caller = || -> Box<dyn FnOnce() + Send> {
            let pool = Arc::clone(&pool);
            Box::new(move || drop(pool.lease()))
        };
        let settings = Arc::clone(&pool);
        let shrink = Box::new(move || {
            settings.set_active(1);
            let first = settings.try_lease();
            assert!(settings.try_lease().is_none() || first.is_none());
        });
        all(vec![caller(), caller(), shrink]);
        assert_eq!((pool.active(), pool.statistics().leased), (1, 0));
    });
}

fn lanes_that_are_given_back_reach_all_who_wait(slice: Duration) {
    model(Some(4), move || {
        let pool = Arc::new(Pool::with_slice(2, slice));
        let (one, two) = (pool.lease(), pool.lease());
        let waiter = |pool: Arc<Pool>| {
            // It never gives its lane back, so that the other one can't live on it.
            thread::spawn(move || std::mem::forget(pool.lease()))
        };
        let waiters = [waiter(Arc::clone(&pool)), waiter(Arc::clone(&pool))];
        drop(one);
        drop(two);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert_eq!(pool.statistics().leased, 2);
    });
}

/// Work for workers that counts itself, alone on its lane.
fn counted(
    done: &Arc<AtomicUsize>,
    inside: &Arc<AtomicUsize>,
) -> impl FnOnce(usize) + Send + use<> {
    let (done, inside) = (Arc::clone(done), Arc::clone(inside));
    move |_| {
        assert_eq!(inside.fetch_add(1, SeqCst), 0, "one lane, one at a time");
        inside.fetch_sub(1, SeqCst);
        done.fetch_add(1, SeqCst);
    }
}

#[test]
fn work_is_done_once_whoever_does_it() {
    model(Some(3), || {
        let pool = Arc::new(Pool::new(1));
        let workers = Arc::new(WorkerPool::new(Arc::clone(&pool)));
        let (done, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let caller = || -> Box<dyn FnOnce() + Send> {
            let (workers, work) = (Arc::clone(&workers), counted(&done, &inside));
            Box::new(move || assert_eq!(workers.run(Patience::Forever, work), Some(())))
        };
        all(vec![caller(), caller()]);
        assert_eq!(done.load(SeqCst), 2);
        assert_eq!((pool.statistics().leased, workers.waiting()), (0, 0));
    });
}

#[test]
fn work_that_is_taken_back_is_not_done_and_hides_no_other() {
    model(Some(2), || {
        let pool = Arc::new(Pool::new(1));
        let workers = Arc::new(WorkerPool::new(Arc::clone(&pool)));
        let (done, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let held = pool.lease();
        let hasty = {
            let (workers, work) = (Arc::clone(&workers), counted(&done, &inside));
            thread::spawn(move || workers.run(Patience::Until(Instant::now()), work).is_some())
        };
        drop(held);
        let work = counted(&done, &inside);
        assert_eq!(workers.run(Patience::Forever, work), Some(()));
        let served = hasty.join().unwrap();
        assert_eq!(done.load(SeqCst), 1 + usize::from(served));
        assert_eq!(workers.waiting(), 0);
        // A worker that found nothing left to do may hold the lane until it has gone.
        drop(workers);
        assert_eq!(pool.statistics().leased, 0);
    });
}

#[test]
fn a_key_is_made_once() {
    model(Some(4), || {
        let map = Arc::new(OnceMap::<u8, usize>::new());
        let made = Arc::new(AtomicUsize::new(0));
        let caller = |key: u8| -> Box<dyn FnOnce() + Send> {
            let (map, made) = (Arc::clone(&map), Arc::clone(&made));
            Box::new(move || {
                let value = map.get_or_make(&key, || {
                    made.fetch_add(1, SeqCst);
                    usize::from(key)
                });
                assert_eq!(value, usize::from(key));
            })
        };
        all(vec![caller(1), caller(1), caller(2)]);
        assert_eq!((made.load(SeqCst), map.initialisations()), (2, 2));
    });
}

#[test]
fn a_failure_passes_the_key_on() {
    model(Some(4), || {
        let map = Arc::new(OnceMap::<u8, usize>::new());
        let tries = Arc::new(AtomicUsize::new(0));
        let caller = || -> Box<dyn FnOnce() + Send> {
            let (map, tries) = (Arc::clone(&map), Arc::clone(&tries));
            Box::new(move || {
                let _ = map.get_or_try_make(&1, || match tries.fetch_add(1, SeqCst) {
                    0 => Err("the first one fails"),
                    nth => Ok(nth),
                });
            })
        };
        all(vec![caller(), caller(), caller()]);
        assert_eq!((tries.load(SeqCst), map.get(&1)), (2, Some(1)));
    });
}

#[test]
fn one_that_gives_up_on_a_key_leaves_it_to_the_others() {
    model(Some(4), || {
        let map = Arc::new(OnceMap::<u8, usize>::new());
        let patient = || -> Box<dyn FnOnce() + Send> {
            let map = Arc::clone(&map);
            Box::new(move || assert_eq!(map.get_or_make(&1, || 7), 7))
        };
        let hasty = Arc::clone(&map);
        let hasty = Box::new(move || match hasty.begin(&1, Patience::Until(Instant::now())) {
            Begun::Made(value) => assert_eq!(value, 7),
            // Given back unmade.
            Begun::Mine(turn) => drop(turn),
            Begun::Busy => {}
        });
        all(vec![patient(), patient(), hasty]);
        assert_eq!((map.get(&1), map.initialisations()), (Some(7), 1));
    });
}

/// Consumes until the queue is closed; counts what came, each way.
fn consume(queue: &BatchQueue<u8, usize>, wait: Duration, taken: &AtomicUsize) {
    const MAX: usize = 2;
    loop {
        match queue.next_batch(MAX, wait) {
            Next::Batch(batch) => {
                assert!(!batch.requests.is_empty() && batch.requests.len() <= MAX);
                let sum: usize = batch.requests.iter().map(|request| request.item).sum();
                taken.fetch_add(sum, SeqCst);
            }
            Next::Expired(late) => {
                taken.fetch_add(late.iter().map(|request| request.item).sum(), SeqCst);
            }
            Next::Closed => return,
        }
    }
}

fn every_request_comes_out_once(wait: Duration, preemptions: usize) {
    model(Some(preemptions), move || {
        let queue = Arc::new(BatchQueue::new(4));
        let taken = Arc::new(AtomicUsize::new(0));
        let consumer = || -> Box<dyn FnOnce() + Send> {
            let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
            Box::new(move || consume(&queue, wait, &taken))
        };
        let producer = Arc::clone(&queue);
        let produce = Box::new(move || {
            for (key, item) in [(1, 1), (2, 10), (1, 100)] {
                producer.push(key, item, None).unwrap();
            }
            producer.close();
        });
        all(vec![consumer(), consumer(), produce]);
        assert_eq!(taken.load(SeqCst), 111);
        assert_eq!((queue.len(), queue.in_flight()), (0, 0));
    });
}

#[test]
fn every_request_comes_out_once_though_none_waits_long() {
    every_request_comes_out_once(Duration::from_micros(100), 2);
}

#[test]
fn every_request_comes_out_once_though_each_waits_for_company() {
    every_request_comes_out_once(LONG, 2);
}

#[test]
fn a_cancelled_request_is_either_given_back_or_run() {
    model(Some(4), || {
        let queue = Arc::new(BatchQueue::new(4));
        let taken = Arc::new(AtomicUsize::new(0));
        let consumer = {
            let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
            thread::spawn(move || consume(&queue, LONG, &taken))
        };
        let ticket = queue.push(1, 1, None).unwrap();
        queue.push(1, 10, None).unwrap();
        let back = queue.cancel(&ticket).unwrap_or(0);
        queue.close();
        consumer.join().unwrap();
        assert_eq!(taken.load(SeqCst) + back, 11);
    });
}

#[test]
fn the_end_of_the_last_batch_in_flight_sends_what_waits_for_company() {
    model(None, || {
        let queue = Arc::new(BatchQueue::new(4));
        queue.push(1, 1, None).unwrap();
        let Next::Batch(flying) = queue.next_batch(8, LONG) else { panic!("there is one") };
        let consumer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || take_one(&queue, LONG))
        };
        queue.push(1, 10, None).unwrap();
        drop(flying);
        assert_eq!(consumer.join().unwrap(), 10);
    });
}

#[test]
fn what_one_consumer_leaves_is_looked_after_by_another() {
    model(Some(4), || {
        let queue = Arc::new(BatchQueue::new(4));
        queue.push(0, 1, None).unwrap();
        // From here on a batch is in flight, and none of them ever ends.
        take_one(&queue, LONG);
        let consumer = |queue: Arc<BatchQueue<u8, usize>>| {
            thread::spawn(move || take_one(&queue, Duration::from_micros(100)))
        };
        let (one, two) = (consumer(Arc::clone(&queue)), consumer(Arc::clone(&queue)));
        queue.push(1, 10, None).unwrap();
        queue.push(2, 100, None).unwrap();
        assert_eq!(one.join().unwrap() + two.join().unwrap(), 110);
    });
}

/// Takes one batch, which stays in flight for ever; gives the sum of what was in it.
fn take_one(queue: &BatchQueue<u8, usize>, wait: Duration) -> usize {
    let Next::Batch(mut batch) = queue.next_batch(8, wait) else { panic!("a batch comes") };
    let sum = batch.requests.drain(..).map(|request| request.item).sum();
    std::mem::forget(batch);
    sum
}
