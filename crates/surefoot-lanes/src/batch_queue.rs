//! A bounded queue whose requests are taken in batches of one key.
//!
//! Protocol: a request waits in the bucket of its key until it is taken in a batch, joins one that
//! runs, expires, is cancelled or drained; exactly one of these happens to it. A batch is in flight
//! until it is dropped. A consumer takes a batch
//! - at once, when no batch is in flight or the queue is closed;
//! - when a bucket has as many requests as fit in a batch;
//! - when the request at the head of a bucket has waited as long as it may, which is never longer
//!   than the last batch took, or has so near a deadline that it must not wait.
//!
//! So a second batch runs beside another when it is full, or when that one takes longer than the one
//! before it did; else its requests wait for those that the first one's callers send next, since one
//! large batch takes less time than two small ones.
//!
//! Callers that ask again as soon as they are answered come back one by one when a batch ends. The
//! first of them would go alone and the others wait for it, so a moment after a batch, an eighth of
//! what it took at most, is left for as many to come as were answered ([`RequestBatch::end`]).
//!
//! What is overdue goes first, oldest first, then what is full, then the oldest: no bucket starves.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use crate::request::{Refused, Request, Ticket};
use crate::sync::{Condvar, Instant, Mutex, MutexGuard, lock, now, wait_until};

/// Beyond this a wait for company means nothing, and clocks may overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Requests that wait to be run together.
#[derive(Debug)]
pub struct BatchQueue<K, T> {
    capacity: usize,
    state: Mutex<State<K, T>>,
    /// Something changed that a waiting consumer should look at.
    work: Condvar,
}

#[derive(Debug)]
struct State<K, T> {
    /// No bucket is empty. A bucket's requests are in the order of their ids and arrivals.
    buckets: HashMap<K, VecDeque<Request<T>>>,
    len: usize,
    next_id: u64,
    in_flight: usize,
    /// The batch that ended last.
    last: Option<Ended>,
    /// Requests that are answered by batches that have ended, less those that came since.
    away: usize,
    closed: bool,
    /// Consumers that wait, the least batch that one of them would call full, and the longest
    /// that one of them lets a request wait. A push that matters to none of them wakes none.
    watching: usize,
    full_at: usize,
    patience: Duration,
}

/// A batch that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    at: Instant,
    took: Duration,
}

/// What a consumer got.
#[derive(Debug)]
pub enum Next<'q, K: Eq + Hash + Clone, T> {
    /// Requests to run together.
    Batch(RequestBatch<'q, K, T>),
    /// Requests whose deadline passed while they waited, to be told so.
    Expired(Vec<Request<T>>),
    /// The queue is closed and empty.
    Closed,
}

/// Requests of one key that are run together. In flight until it is dropped.
#[derive(Debug)]
pub struct RequestBatch<'q, K: Eq + Hash + Clone, T> {
    /// The key of all of them.
    pub key: K,
    /// The requests, in the order in which they came; at least one.
    pub requests: Vec<Request<T>>,
    flight: Flight<'q, K, T>,
}

/// What ends a batch's time in flight.
#[derive(Debug)]
struct Flight<'q, K: Eq + Hash + Clone, T> {
    queue: &'q BatchQueue<K, T>,
    since: Instant,
    /// Requests whose callers may come back once it has ended.
    to_answer: usize,
}

impl<K: Eq + Hash + Clone, T> BatchQueue<K, T> {
    /// A queue for at most `capacity` waiting requests.
    pub fn new(capacity: usize) -> Self {
        let state = State {
            buckets: HashMap::new(),
            len: 0,
            next_id: 0,
            in_flight: 0,
            last: None,
            away: 0,
            closed: false,
            watching: 0,
            full_at: usize::MAX,
            patience: Duration::ZERO,
        };
        Self { capacity, state: Mutex::new(state), work: Condvar::new() }
    }

    /// Adds a request. Never waits: a queue that is full or closed gives the item back.
    pub fn push(
        &self,
        key: K,
        item: T,
        deadline: Option<Instant>,
    ) -> Result<Ticket<K>, Refused<T>> {
        let mut state = lock(&self.state);
        match self.refusal(&state, 1) {
            Some(Refusal::Full) => return Err(Refused::Full(item)),
            Some(Refusal::Closed) => return Err(Refused::Closed(item)),
            None => {}
        }
        let (ticket, wake) = state.add(key, item, deadline);
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(ticket)
    }

    /// Adds all of `items`, in one go, or none if there is no room for all of them: nobody takes
    /// some of them before the others are there.
    pub fn push_all(
        &self,
        items: Vec<(K, T)>,
        deadline: Option<Instant>,
    ) -> Result<(), Refused<Vec<(K, T)>>> {
        let mut state = lock(&self.state);
        match self.refusal(&state, items.len()) {
            Some(Refusal::Full) => return Err(Refused::Full(items)),
            Some(Refusal::Closed) => return Err(Refused::Closed(items)),
            None => {}
        }
        let mut wake = false;
        for (key, item) in items {
            wake |= state.add(key, item, deadline).1;
        }
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(())
    }

    fn refusal(&self, state: &State<K, T>, count: usize) -> Option<Refusal> {
        if state.closed {
            Some(Refusal::Closed)
        } else {
            (state.len + count > self.capacity).then_some(Refusal::Full)
        }
    }

    /// Waits for the next batch of at most `max` requests, none of which waits longer than
    /// `max_wait` for others to come, as long as there is a consumer to take it.
    pub fn next_batch(&self, max: usize, max_wait: Duration) -> Next<'_, K, T> {
        loop {
            if let Some(next) = self.next_batch_before(max, max_wait, now() + LONGEST_WAIT) {
                return next;
            }
        }
    }

    /// [`Self::next_batch`], for a consumer that has something to do if none comes until then: it gets none.
    pub fn next_batch_before(
        &self,
        max: usize,
        max_wait: Duration,
        until: Instant,
    ) -> Option<Next<'_, K, T>> {
        let (max, max_wait) = (max.max(1), max_wait.min(LONGEST_WAIT));
        let mut state = lock(&self.state);
        let mut waited = None;
        let mut is_over = false;
        loop {
            let now = now();
            let expired = state.take_expired(now);
            if !expired.is_empty() {
                self.pass_on(state);
                return Some(Next::Expired(expired));
            }
            match state.choose(max, max_wait, now, waited) {
                Choice::Take(key) => return Some(Next::Batch(self.depart(state, key, max))),
                Choice::Nothing if state.closed => return Some(Next::Closed),
                Choice::Nothing if is_over => return None,
                Choice::Nothing => {
                    state.watch(max, max_wait);
                    (state, is_over) = wait_until(&self.work, &self.state, state, until);
                }
                Choice::Wait(wait) => {
                    state.watch(max, max_wait);
                    let timed_out;
                    (state, timed_out) = wait_until(&self.work, &self.state, state, wait.until);
                    waited = timed_out.then_some(wait);
                }
            }
            state.watched();
        }
    }

    /// Takes up to `max` requests of `key` that wait now, to join a batch that runs.
    pub fn join(&self, key: &K, max: usize) -> Vec<Request<T>> {
        let mut state = lock(&self.state);
        let now = now();
        let Some(bucket) = state.buckets.get_mut(key) else { return Vec::new() };
        let mut room = max;
        // Those that expired stay for whoever takes the expired ones.
        let taken = pick(bucket, |request| {
            let joins = room > 0 && !request.is_expired(now);
            room -= usize::from(joins);
            joins
        });
        state.len -= taken.len();
        state.forget_if_empty(key);
        taken
    }

    /// Takes the requests whose deadline has passed, to be told so. For consumers that
    /// [`join`](Self::join) for long; [`next_batch`](Self::next_batch) gives them by itself.
    pub fn take_expired(&self) -> Vec<Request<T>> {
        lock(&self.state).take_expired(now())
    }

    /// Takes the requests whose item `out` picks, for one that knows that nobody waits for them.
    pub fn take_if(&self, out: impl Fn(&T) -> bool) -> Vec<Request<T>> {
        lock(&self.state).take_where(|request| out(&request.item))
    }

    /// Marks a request as cancelled. Gives its item back if it still waited; one that was taken
    /// finds out by [`Request::is_cancelled`].
    pub fn cancel(&self, ticket: &Ticket<K>) -> Option<T> {
        ticket.mark_cancelled();
        let mut state = lock(&self.state);
        let bucket = state.buckets.get_mut(ticket.key())?;
        let at = bucket.binary_search_by_key(&ticket.id(), Request::id).ok()?;
        let request = bucket.remove(at)?;
        state.len -= 1;
        state.forget_if_empty(ticket.key());
        Some(request.item)
    }

    /// Refuses new requests. Those that wait are still given out, without delay; then consumers
    /// are told that it is closed.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_all();
    }

    /// Takes all that wait, for one that can't go on.
    pub fn drain(&self) -> Vec<Request<T>> {
        let mut state = lock(&self.state);
        state.len = 0;
        let mut all: Vec<_> = state.buckets.drain().flat_map(|(_, bucket)| bucket).collect();
        all.sort_by_key(Request::id);
        all
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        lock(&self.state).len
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many requests may wait.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many batches are in flight.
    pub fn in_flight(&self) -> usize {
        lock(&self.state).in_flight
    }

    /// Whether new requests are refused.
    pub fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    fn depart(
        &self,
        mut state: MutexGuard<'_, State<K, T>>,
        key: K,
        max: usize,
    ) -> RequestBatch<'_, K, T> {
        let bucket = state.buckets.entry(key.clone()).or_default();
        let requests: Vec<_> = bucket.drain(..max.min(bucket.len())).collect();
        state.len -= requests.len();
        state.forget_if_empty(&key);
        if state.in_flight == 0 {
            // Who is still away after the moment that was left is not coming back.
            state.away = 0;
        }
        state.in_flight += 1;
        self.pass_on(state);
        let flight = Flight { queue: self, since: now(), to_answer: 0 };
        RequestBatch { key, requests, flight }
    }

    /// What is left is another consumer's to look after: this one may have been the only one
    /// that knew of it.
    fn pass_on(&self, state: MutexGuard<'_, State<K, T>>) {
        let wake = state.len > 0 && state.watching > 0;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }
}

impl<K: Eq + Hash + Clone, T> RequestBatch<'_, K, T> {
    /// Ends it with `to_answer` requests that are answered only now: they may be asked again by
    /// the same callers, and a moment is left for these to come.
    pub fn end(mut self, to_answer: usize) {
        self.flight.to_answer = to_answer;
    }
}

impl<K: Eq + Hash + Clone, T> Drop for Flight<'_, K, T> {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        state.in_flight -= 1;
        let at = now();
        let took = at.saturating_duration_since(self.since);
        state.last = Some(Ended { at, took });
        state.away += self.to_answer;
        // With nothing in flight what waits is to go soon.
        match state.in_flight {
            0 => self.queue.pass_on(state),
            _ => drop(state),
        }
    }
}

/// Why requests are not taken.
enum Refusal {
    Full,
    Closed,
}

/// What a consumer should do.
enum Choice<K> {
    Take(K),
    Wait(Wait),
    Nothing,
}

/// Until when, on account of which request.
#[derive(Clone, Copy, PartialEq)]
struct Wait {
    until: Instant,
    head: u64,
}

impl<K: Eq + Hash + Clone, T> State<K, T> {
    fn choose(
        &self,
        max: usize,
        max_wait: Duration,
        now: Instant,
        waited: Option<Wait>,
    ) -> Choice<K> {
        let max_wait = self.last.map_or(max_wait, |last| max_wait.min(last.took));
        let due = |bucket: &VecDeque<Request<T>>| {
            bucket.iter().map(|request| request.due(max_wait)).min().unwrap_or(now)
        };
        // Ids are in the order of arrival.
        let head = |bucket: &VecDeque<Request<T>>| bucket.front().map_or(u64::MAX, Request::id);
        let Some((oldest, first)) = self.buckets.iter().min_by_key(|(_, b)| (due(b), head(b)))
        else {
            return Choice::Nothing;
        };
        let (due, id) = (due(first), head(first));
        // What was waited for on account of a request that another consumer took counts no more.
        let is_over = |until: Instant| until <= now || waited == Some(Wait { until, head: id });
        if is_over(due) {
            return Choice::Take(oldest.clone());
        }
        let full = self.buckets.iter().filter(|(_, bucket)| bucket.len() >= max);
        if let Some((key, _)) = full.min_by_key(|(_, bucket)| head(bucket)) {
            return Choice::Take(key.clone());
        }
        if self.in_flight > 0 && !self.closed {
            return Choice::Wait(Wait { until: due, head: id });
        }
        match self.last.map(|last| last.at + last.took / 8) {
            Some(moment) if !self.closed && self.away > 0 && !is_over(due.min(moment)) => {
                Choice::Wait(Wait { until: due.min(moment), head: id })
            }
            _ => Choice::Take(oldest.clone()),
        }
    }

    /// Puts a request into its bucket; whether a consumer that waits should look at it.
    fn add(&mut self, key: K, item: T, deadline: Option<Instant>) -> (Ticket<K>, bool) {
        let arrived = now();
        let request = Request::new(self.next_id, item, arrived, deadline);
        self.next_id += 1;
        let ticket = Ticket::new(key.clone(), &request);
        let first = self.len == 0;
        let bucket = self.buckets.entry(key).or_default();
        bucket.push_back(request);
        let waiting_here = bucket.len();
        self.len += 1;
        let hurries = deadline.is_some_and(|at| at < arrived + self.patience);
        self.away = self.away.saturating_sub(1);
        let all_back = self.in_flight == 0 && self.away == 0;
        let matters = first || all_back || waiting_here >= self.full_at || hurries;
        (ticket, matters && self.watching > 0)
    }

    fn take_expired(&mut self, now: Instant) -> Vec<Request<T>> {
        self.take_where(|request| request.is_expired(now))
    }

    fn take_where(&mut self, out: impl Fn(&Request<T>) -> bool) -> Vec<Request<T>> {
        let mut taken = Vec::new();
        for bucket in self.buckets.values_mut() {
            if bucket.iter().any(&out) {
                taken.extend(pick(bucket, &out));
            }
        }
        if !taken.is_empty() {
            taken.sort_by_key(Request::id);
            self.len -= taken.len();
            self.buckets.retain(|_, bucket| !bucket.is_empty());
        }
        taken
    }

    fn forget_if_empty(&mut self, key: &K) {
        if self.buckets.get(key).is_some_and(VecDeque::is_empty) {
            self.buckets.remove(key);
        }
    }

    fn watch(&mut self, max: usize, max_wait: Duration) {
        self.watching += 1;
        self.full_at = self.full_at.min(max);
        self.patience = self.patience.max(max_wait);
    }

    fn watched(&mut self) {
        self.watching -= 1;
        if self.watching == 0 {
            self.full_at = usize::MAX;
            self.patience = Duration::ZERO;
        }
    }
}

/// Moves the requests that `out` picks out of a bucket; both parts keep their order.
fn pick<T>(
    bucket: &mut VecDeque<Request<T>>,
    out: impl FnMut(&Request<T>) -> bool,
) -> Vec<Request<T>> {
    let (picked, kept): (VecDeque<_>, _) = bucket.drain(..).partition(out);
    *bucket = kept;
    picked.into()
}
