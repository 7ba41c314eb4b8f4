//! Batching with real threads and real time.
#![cfg(not(any(feature = "loom", feature = "shuttle")))]

use std::time::{Duration, Instant};

use surefoot_lanes::{BatchQueue, Next, Refused, RequestBatch};

const NEVER: Duration = Duration::from_secs(3600);

fn batch<'q>(next: Next<'q, u32, &'static str>) -> RequestBatch<'q, u32, &'static str> {
    match next {
        Next::Batch(batch) => batch,
        other => panic!("{other:?}"),
    }
}

fn items(batch: &RequestBatch<'_, u32, &'static str>) -> Vec<&'static str> {
    batch.requests.iter().map(|request| request.item).collect()
}

#[test]
fn an_idle_queue_gives_what_it_has_at_once() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    let first = batch(queue.next_batch(4, NEVER));
    assert_eq!((first.key, items(&first)), (1, vec!["a"]));
    assert_eq!(queue.in_flight(), 1);
    drop(first);
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn with_a_batch_in_flight_requests_wait_for_company_but_not_too_long() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    let _flying = batch(queue.next_batch(4, NEVER));
    queue.push(1, "b", None).unwrap();
    let started = Instant::now();
    let wait = Duration::from_millis(10);
    assert_eq!(items(&batch(queue.next_batch(4, wait))), ["b"]);
    assert!(started.elapsed() >= wait - Duration::from_millis(1));
}

/// A queue whose last batch had the requests `a` and `b` and took `time`.
fn after_two(time: Duration) -> BatchQueue<u32, &'static str> {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).expect("room");
    queue.push(1, "b", None).expect("room");
    let flying = batch(queue.next_batch(4, NEVER));
    std::thread::sleep(time);
    flying.end(2);
    queue
}

#[test]
fn those_whom_a_batch_answered_have_a_moment_to_come_back_together() {
    let queue = after_two(Duration::from_millis(1600));
    queue.push(1, "a", None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            queue.push(1, "b", None).unwrap();
        });
        assert_eq!(items(&batch(queue.next_batch(4, NEVER))), ["a", "b"]);
    });
}

#[test]
fn nobody_is_waited_for_whose_answer_came_before_the_batch_ended() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    queue.push(1, "b", None).unwrap();
    let flying = batch(queue.next_batch(4, NEVER));
    std::thread::sleep(Duration::from_millis(1600));
    queue.push(1, "a", None).unwrap();
    flying.end(0);
    let started = Instant::now();
    assert_eq!(items(&batch(queue.next_batch(4, NEVER))), ["a"]);
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
}

/// Two consumers leave the same moment to those who come back. When it is over one takes what is
/// there; the other waits for company then, like anyone beside a batch in flight.
#[test]
fn of_two_consumers_one_takes_what_came_back_in_time() {
    let queue = after_two(Duration::from_millis(800));
    queue.push(1, "a", None).unwrap();
    std::thread::scope(|scope| {
        let consume = || {
            let started = Instant::now();
            let batch = batch(queue.next_batch(4, NEVER));
            let took = (items(&batch), started.elapsed());
            std::thread::sleep(Duration::from_millis(400));
            took
        };
        let consumers = [scope.spawn(consume), scope.spawn(consume)];
        std::thread::sleep(Duration::from_millis(150));
        queue.push(1, "b", None).unwrap();
        let mut took = consumers.map(|consumer| consumer.join().unwrap());
        took.sort_by_key(|(items, _)| items.clone());
        assert_eq!(took.each_ref().map(|(items, _)| items.as_slice()), [["a"], ["b"]]);
        assert!(took[1].1 >= Duration::from_millis(300), "{took:?}");
    });
}

#[test]
fn those_of_two_batches_come_back_together() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    let first = batch(queue.next_batch(1, NEVER));
    queue.push(1, "b", None).unwrap();
    let second = batch(queue.next_batch(1, NEVER));
    std::thread::sleep(Duration::from_millis(1600));
    first.end(1);
    queue.push(1, "a", None).unwrap();
    second.end(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            queue.push(1, "b", None).unwrap();
        });
        assert_eq!(items(&batch(queue.next_batch(4, NEVER))), ["a", "b"]);
    });
}

#[test]
fn who_comes_back_alone_waits_for_an_eighth_of_the_last_batch_and_for_its_patience_at_most() {
    let queue = after_two(Duration::from_millis(400));
    let started = Instant::now();
    queue.push(1, "a", None).unwrap();
    assert_eq!(items(&batch(queue.next_batch(4, Duration::from_millis(5)))), ["a"]);
    assert!(started.elapsed() < Duration::from_millis(40), "{:?}", started.elapsed());

    let queue = after_two(Duration::from_millis(80));
    queue.push(1, "a", None).unwrap();
    assert_eq!(items(&batch(queue.next_batch(4, NEVER))), ["a"]);
}

#[test]
fn a_request_waits_for_company_no_longer_than_the_last_batch_took() {
    let queue = after_two(Duration::from_millis(40));
    std::thread::sleep(Duration::from_millis(6));
    queue.push(1, "a", None).unwrap();
    let _flying = batch(queue.next_batch(4, NEVER));
    queue.push(1, "b", None).unwrap();
    let started = Instant::now();
    assert_eq!(items(&batch(queue.next_batch(4, NEVER))), ["b"]);
    assert!(started.elapsed() >= Duration::from_millis(39), "{:?}", started.elapsed());
}

#[test]
fn a_full_bucket_goes_without_waiting() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    let _flying = batch(queue.next_batch(4, NEVER));
    for (key, item) in [(1, "b"), (2, "x"), (2, "y"), (2, "z")] {
        queue.push(key, item, None).unwrap();
    }
    let full = batch(queue.next_batch(2, NEVER));
    assert_eq!((full.key, items(&full)), (2, vec!["x", "y"]));
}

#[test]
fn what_is_overdue_goes_before_what_is_full() {
    let queue = BatchQueue::new(8);
    queue.push(0, "first", None).unwrap();
    let _flying = batch(queue.next_batch(4, NEVER));
    queue.push(1, "old", None).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    queue.push(2, "x", None).unwrap();
    queue.push(2, "y", None).unwrap();
    assert_eq!(items(&batch(queue.next_batch(2, Duration::from_millis(4)))), ["old"]);
}

#[test]
fn the_end_of_the_last_batch_in_flight_sends_what_waits() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    let flying = batch(queue.next_batch(4, NEVER));
    queue.push(1, "b", None).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| items(&batch(queue.next_batch(4, NEVER))));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!second.is_finished());
        drop(flying);
        assert_eq!(second.join().unwrap(), ["b"]);
    });
}

#[test]
fn a_request_comes_while_a_consumer_waits() {
    let queue = BatchQueue::new(8);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| items(&batch(queue.next_batch(4, NEVER))));
        std::thread::sleep(Duration::from_millis(5));
        queue.push(1, "a", None).unwrap();
        assert_eq!(consumer.join().unwrap(), ["a"]);
    });
}

#[test]
fn a_full_queue_gives_the_item_back() {
    let queue = BatchQueue::new(1);
    queue.push(1, "a", None).unwrap();
    assert!(matches!(queue.push(1, "b", None), Err(Refused::Full("b"))));
    drop(batch(queue.next_batch(1, NEVER)));
    queue.push(1, "c", None).unwrap();
}

#[test]
fn a_closed_queue_refuses_drains_and_ends() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    let _flying = batch(queue.next_batch(8, NEVER));
    queue.push(1, "b", None).unwrap();
    queue.push(2, "c", None).unwrap();
    queue.close();
    assert!(matches!(queue.push(1, "d", None), Err(Refused::Closed("d"))));
    // Without delay, though a batch is in flight.
    assert_eq!(items(&batch(queue.next_batch(8, NEVER))), ["b"]);
    assert_eq!(items(&batch(queue.next_batch(8, NEVER))), ["c"]);
    assert!(matches!(queue.next_batch(8, NEVER), Next::Closed));
}

#[test]
fn closing_wakes_every_consumer() {
    let queue = BatchQueue::<u32, &str>::new(8);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| matches!(queue.next_batch(8, NEVER), Next::Closed)))
            .collect();
        std::thread::sleep(Duration::from_millis(5));
        queue.close();
        assert!(all.into_iter().all(|consumer| consumer.join().unwrap()));
    });
}

#[test]
fn an_expired_request_is_given_back_as_that_and_never_run() {
    let queue = BatchQueue::new(8);
    queue.push(1, "late", Some(Instant::now())).unwrap();
    queue.push(1, "fine", Some(Instant::now() + NEVER)).unwrap();
    let Next::Expired(expired) = queue.next_batch(8, NEVER) else { panic!("one is late") };
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].item, "late");
    assert_eq!(items(&batch(queue.next_batch(8, NEVER))), ["fine"]);
    assert_eq!(queue.len(), 0);
}

#[test]
fn a_near_deadline_does_not_wait_for_company() {
    let queue = BatchQueue::new(8);
    queue.push(1, "a", None).unwrap();
    let _flying = batch(queue.next_batch(8, NEVER));
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| items(&batch(queue.next_batch(8, NEVER))));
        std::thread::sleep(Duration::from_millis(5));
        queue.push(1, "b", None).unwrap();
        queue.push(2, "hurried", Some(Instant::now() + Duration::from_secs(60))).unwrap();
        assert_eq!(consumer.join().unwrap(), ["hurried"]);
    });
}

#[test]
fn cancelling_gives_the_item_back_while_it_waits_and_marks_it_after() {
    let queue = BatchQueue::new(2);
    let a = queue.push(1, "a", None).unwrap();
    let b = queue.push(1, "b", None).unwrap();
    assert_eq!(queue.cancel(&a), Some("a"));
    assert_eq!(queue.cancel(&a), None);
    assert_eq!(queue.len(), 1, "there is room again");
    let flying = batch(queue.next_batch(8, NEVER));
    assert_eq!(items(&flying), ["b"]);
    assert!(!flying.requests[0].is_cancelled());
    assert_eq!(queue.cancel(&b), None);
    assert!(flying.requests[0].is_cancelled());
}

#[test]
fn all_are_queued_in_one_go_or_none_is() {
    let queue = BatchQueue::new(3);
    queue.push_all(vec![(1, "a"), (2, "b")], None).unwrap();
    let refused = queue.push_all(vec![(1, "c"), (1, "d")], None).unwrap_err();
    assert!(matches!(refused, Refused::Full(_)));
    assert_eq!(refused.into_item(), [(1, "c"), (1, "d")]);
    assert_eq!(queue.len(), 2);
    queue.push_all(vec![(1, "c")], None).unwrap();
    assert_eq!(items(&batch(queue.next_batch(8, NEVER))), ["a", "c"]);
    queue.close();
    assert!(matches!(queue.push_all(vec![(1, "e")], None), Err(Refused::Closed(_))));
}

#[test]
fn a_consumer_that_waits_gets_all_that_came_in_one_go() {
    let queue = BatchQueue::new(64);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| batch(queue.next_batch(64, NEVER)).requests.len());
        std::thread::sleep(Duration::from_millis(5));
        queue.push_all(vec![(1, "x"); 64], None).unwrap();
        assert_eq!(consumer.join().unwrap(), 64);
    });
}

#[test]
fn what_nobody_waits_for_makes_room() {
    let queue = BatchQueue::new(4);
    queue.push_all(vec![(1, 1), (2, 2), (1, 3), (3, 4)], None).unwrap();
    let taken: Vec<_> = queue.take_if(|item| item % 2 == 0).into_iter().map(|r| r.item).collect();
    assert_eq!(taken, [2, 4]);
    assert_eq!(queue.len(), 2);
    queue.push_all(vec![(2, 5), (2, 6)], None).unwrap();
}

#[test]
fn requests_join_a_batch_that_runs() {
    let queue = BatchQueue::new(8);
    for (key, item) in [(1, "a"), (2, "x"), (1, "b"), (1, "c")] {
        queue.push(key, item, None).unwrap();
    }
    queue.push(1, "late", Some(Instant::now())).unwrap();
    let joined: Vec<_> = queue.join(&1, 2).into_iter().map(|r| r.item).collect();
    assert_eq!(joined, ["a", "b"]);
    let rest: Vec<_> = queue.join(&1, 9).into_iter().map(|r| r.item).collect();
    assert_eq!(rest, ["c"]);
    assert_eq!(queue.take_expired().len(), 1);
    assert_eq!((queue.len(), queue.in_flight()), (1, 0));
}

#[test]
fn what_can_not_go_on_is_drained_in_order() {
    let queue = BatchQueue::new(8);
    for (key, item) in [(2, "a"), (1, "b"), (2, "c")] {
        queue.push(key, item, None).unwrap();
    }
    let drained: Vec<_> = queue.drain().into_iter().map(|r| r.item).collect();
    assert_eq!(drained, ["a", "b", "c"]);
    assert!(queue.is_empty());
}

#[test]
fn who_has_other_things_to_do_waits_for_an_empty_queue_so_long_and_no_longer() {
    let queue = BatchQueue::new(8);
    let (started, wait) = (Instant::now(), Duration::from_millis(10));
    assert!(queue.next_batch_before(4, NEVER, started + wait).is_none());
    assert!(started.elapsed() >= wait);
    // What comes meanwhile is given at once, and what is there even if the time is over.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(wait);
            queue.push(1, "a", None).unwrap();
        });
        let next = queue.next_batch_before(4, NEVER, Instant::now() + NEVER).unwrap();
        assert_eq!(items(&batch(next)), ["a"]);
    });
    queue.push(1, "b", None).unwrap();
    assert_eq!(items(&batch(queue.next_batch_before(4, NEVER, started).unwrap())), ["b"]);
    queue.close();
    assert!(matches!(queue.next_batch_before(4, NEVER, started), Some(Next::Closed)));
}
