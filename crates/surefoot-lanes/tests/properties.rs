//! Any sequence of calls on one thread, against what they should come to.
#![cfg(not(any(feature = "loom", feature = "shuttle")))]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use surefoot_lanes::{BatchQueue, Next, Pool, Refused, Ticket};

#[derive(Clone, Debug)]
enum Lease {
    Try,
    Until,
    GiveBack(usize),
    SetActive(usize),
}

fn lease() -> impl Strategy<Value = Lease> {
    prop_oneof![
        4 => Just(Lease::Try),
        1 => Just(Lease::Until),
        3 => any::<usize>().prop_map(Lease::GiveBack),
        1 => (0usize..10).prop_map(Lease::SetActive),
    ]
}

#[derive(Clone, Debug)]
enum Call {
    Push { key: u8, late: bool },
    Next { max: usize },
    Join { key: u8, max: usize },
    Cancel(usize),
    TakeExpired,
    Drain,
    Close,
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        12 => (0u8..3, proptest::bool::weighted(0.15)).prop_map(|(key, late)| Call::Push { key, late }),
        5 => (1usize..5).prop_map(|max| Call::Next { max }),
        2 => (0u8..3, 0usize..4).prop_map(|(key, max)| Call::Join { key, max }),
        2 => any::<usize>().prop_map(Call::Cancel),
        1 => Just(Call::TakeExpired),
        1 => Just(Call::Drain),
        1 => Just(Call::Close),
    ]
}

/// What should wait in the queue: each key's requests in order, and whether each is late.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<u64, (u8, bool)>,
    tickets: Vec<Ticket<u8>>,
}

impl Model {
    /// The first `max` of `key` that are not late.
    fn first(&self, key: u8, max: usize) -> Vec<u64> {
        let fits = |(_, (of, late)): &(&u64, &(u8, bool))| *of == key && !late;
        self.waiting.iter().filter(fits).map(|(id, _)| *id).take(max).collect()
    }

    fn late(&self) -> Vec<u64> {
        self.waiting.iter().filter(|(_, (_, late))| *late).map(|(id, _)| *id).collect()
    }

    fn take(&mut self, ids: &[u64]) {
        for id in ids {
            assert!(self.waiting.remove(id).is_some(), "{id} came out twice");
        }
    }
}

proptest! {
    #[test]
    fn lanes_are_leased_once_and_no_more_of_them_than_are_active(
        lanes in 1usize..8,
        slice in prop_oneof![Just(Duration::ZERO), Just(Duration::from_millis(1))],
        calls in proptest::collection::vec(lease(), 0..200),
    ) {
        let pool = Pool::with_slice(lanes, slice);
        let (mut held, mut active, mut greatest) = (Vec::new(), lanes, 0);
        for call in calls {
            match call {
                Lease::Try | Lease::Until => {
                    let lease = match call {
                        Lease::Try => pool.try_lease(),
                        _ => pool.lease_until(Instant::now()),
                    };
                    prop_assert_eq!(lease.is_some(), held.len() < active);
                    held.extend(lease);
                }
                Lease::GiveBack(nth) if !held.is_empty() => drop(held.swap_remove(nth % held.len())),
                Lease::GiveBack(_) => {}
                Lease::SetActive(count) => {
                    active = count.clamp(1, lanes);
                    pool.set_active(count);
                }
            }
            let mut taken: Vec<_> = held.iter().map(|lease| lease.lane()).collect();
            taken.sort_unstable();
            taken.dedup();
            prop_assert_eq!(taken.len(), held.len(), "each lane has one holder");
            greatest = greatest.max(held.len());
            let now = pool.statistics();
            prop_assert_eq!((now.leased, now.active, now.waiting), (held.len(), active, 0));
            prop_assert_eq!(now.greatest_leased, greatest);
        }
    }

    #[test]
    fn what_goes_into_the_queue_comes_out_once_and_in_order(
        capacity in 1usize..12,
        calls in proptest::collection::vec(call(), 0..120),
    ) {
        let queue = BatchQueue::new(capacity);
        let (mut model, mut closed) = (Model::default(), false);
        let past = Instant::now();
        let future = past + Duration::from_secs(3600);
        for call in calls {
            match call {
                Call::Push { key, late } => {
                    let deadline = if late { past } else { future };
                    match queue.push(key, (), Some(deadline)) {
                        Ok(ticket) => {
                            prop_assert!(!closed && model.waiting.len() < capacity);
                            model.waiting.insert(ticket.id(), (key, late));
                            model.tickets.push(ticket);
                        }
                        Err(Refused::Closed(())) => prop_assert!(closed),
                        Err(Refused::Full(())) => prop_assert_eq!(model.waiting.len(), capacity),
                    }
                }
                // On one thread an empty queue that is open would be waited at for ever.
                Call::Next { .. } if model.waiting.is_empty() && !closed => {}
                Call::Next { max } => match queue.next_batch(max, Duration::ZERO) {
                    Next::Expired(expired) => {
                        let ids: Vec<_> = expired.iter().map(|request| request.id()).collect();
                        prop_assert_eq!(&ids, &model.late());
                        model.take(&ids);
                    }
                    Next::Batch(batch) => {
                        prop_assert!(model.late().is_empty(), "late ones are told first");
                        let ids: Vec<_> = batch.requests.iter().map(|r| r.id()).collect();
                        prop_assert_eq!(&ids, &model.first(batch.key, max));
                        // No patience: the oldest of all goes first.
                        prop_assert_eq!(ids.first(), model.waiting.keys().next());
                        model.take(&ids);
                        prop_assert_eq!(queue.in_flight(), 1);
                    }
                    Next::Closed => prop_assert!(closed && model.waiting.is_empty()),
                },
                Call::Join { key, max } => {
                    let ids: Vec<_> = queue.join(&key, max).iter().map(|r| r.id()).collect();
                    prop_assert_eq!(&ids, &model.first(key, max));
                    model.take(&ids);
                }
                Call::Cancel(_) if model.tickets.is_empty() => {}
                Call::Cancel(nth) => {
                    let ticket = &model.tickets[nth % model.tickets.len()];
                    let waited = model.waiting.remove(&ticket.id()).is_some();
                    prop_assert_eq!(queue.cancel(ticket).is_some(), waited);
                }
                Call::TakeExpired => {
                    let ids: Vec<_> = queue.take_expired().iter().map(|r| r.id()).collect();
                    prop_assert_eq!(&ids, &model.late());
                    model.take(&ids);
                }
                Call::Drain => {
                    let ids: Vec<_> = queue.drain().iter().map(|request| request.id()).collect();
                    prop_assert_eq!(&ids, &model.waiting.keys().copied().collect::<Vec<_>>());
                    model.waiting.clear();
                }
                Call::Close => {
                    queue.close();
                    closed = true;
                }
            }
            prop_assert_eq!((queue.len(), queue.in_flight()), (model.waiting.len(), 0));
        }
    }
}
