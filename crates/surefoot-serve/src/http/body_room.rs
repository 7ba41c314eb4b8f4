//! Room for the bodies of requests that are read side by side.
//!
//! A body takes room as its bytes arrive, so a client that announces much and sends nothing takes nothing. Since a body
//! that is half there keeps what it has, room is given as a banker lends: only if all bodies that have some can still
//! become as large as they may, one after another. A large body that has begun therefore holds up other large ones, but
//! no body for which there is room beside it.
//!
//! Who waits makes the slowest client give way, so that bodies that come slowly or not at all keep nobody waiting.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Room is counted in pieces of this size.
const PIECE: usize = 1 << 10;
/// How long a client may send nothing, or begin slowly, before it gives way to others.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often who waits looks for a client that has become slow.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why a body gets no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Its client was too slow while others waited.
    GaveWay,
    /// None became free in time.
    Full,
}

/// Room that bodies share.
#[derive(Debug)]
pub(super) struct BodyRoom {
    ledger: Mutex<Ledger>,
    /// Told whenever room becomes free.
    freed: Notify,
    /// How long a client may take for a body.
    reading: Duration,
}

#[derive(Debug)]
struct Ledger {
    size: usize,
    held: usize,
    next: u64,
    /// The bodies that hold something.
    bodies: BTreeMap<u64, Holding>,
}

/// What a body holds.
#[derive(Debug)]
struct Holding {
    bytes: usize,
    /// As large as it may become.
    most: usize,
    phase: Phase,
    /// How long its client took for what came.
    client_took: Duration,
    give_way: Arc<Notify>,
    gives_way: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It waits for its client since then.
    Reads(Instant),
    /// It waits for room.
    Waits,
    /// It was read to its end, or is just being moved.
    Idle,
}

/// The room of one body, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct HeldRoom {
    room: Arc<BodyRoom>,
    id: u64,
    most: usize,
    client_took: Duration,
    give_way: Arc<Notify>,
}

impl Holding {
    /// How long the whole body would take at the speed of its client so far, if the client is too slow for others to
    /// wait for it.
    fn is_slow(&self, now: Instant, reading: Duration) -> Option<Duration> {
        let Phase::Reads(since) = self.phase else { return None };
        let silent = now.saturating_duration_since(since);
        let took = self.client_took + silent;
        let whole = took.mul_f64(self.most as f64 / self.bytes.max(1) as f64);
        let is_slow = silent >= PATIENCE || (took >= PATIENCE && whole > reading);
        is_slow.then_some(whole)
    }
}

impl Ledger {
    fn fits(&self, id: u64, bytes: usize, most: usize) -> bool {
        let own = self.bodies.get(&id).map_or(0, |holding| holding.bytes);
        // Those that have begun come first.
        if own == 0 && self.bodies.values().any(|holding| holding.phase == Phase::Waits) {
            return false;
        }
        let free = self.size - self.held + own;
        if most <= free {
            return true;
        }
        let Some(mut left) = free.checked_sub(bytes) else { return false };
        let others = self.bodies.iter().filter(|(other, _)| **other != id);
        let mut all: Vec<(usize, usize)> =
            others.map(|(_, holding)| (holding.most - holding.bytes, holding.bytes)).collect();
        all.push((most - bytes, bytes));
        all.sort_unstable();
        all.iter().all(|(missing, held)| {
            let ends = *missing <= left;
            left += held;
            ends
        })
    }

    fn give(&mut self, held: &HeldRoom, bytes: usize) {
        let holding = self.bodies.entry(held.id).or_insert_with(|| Holding {
            bytes: 0,
            most: held.most,
            phase: Phase::Idle,
            client_took: Duration::ZERO,
            give_way: Arc::clone(&held.give_way),
            gives_way: false,
        });
        self.held = self.held - holding.bytes + bytes;
        holding.bytes = bytes;
        holding.phase = Phase::Idle;
    }

    /// Makes the slowest client give way, if any is slow and none is just leaving.
    fn make_way(&mut self, now: Instant, reading: Duration) {
        if self.bodies.values().any(|holding| holding.gives_way) {
            return;
        }
        let slow = self.bodies.values_mut().filter_map(|holding| {
            let whole = holding.is_slow(now, reading)?;
            Some((whole, holding))
        });
        if let Some((_, slowest)) = slow.max_by_key(|(whole, _)| *whole) {
            slowest.gives_way = true;
            slowest.give_way.notify_one();
        }
    }
}

impl BodyRoom {
    /// Room for bodies that their clients send within `reading`.
    pub(super) fn new(size: usize, reading: Duration) -> Arc<Self> {
        let size = pieces(size);
        let ledger = Ledger { size, held: 0, next: 0, bodies: BTreeMap::new() };
        Arc::new(Self { ledger: Mutex::new(ledger), freed: Notify::new(), reading })
    }

    /// Nothing yet, for a body of at most so many bytes.
    pub(super) fn begin(self: &Arc<Self>, most: usize) -> HeldRoom {
        let mut ledger = self.lock();
        ledger.next += 1;
        HeldRoom {
            id: ledger.next,
            most: pieces(most).min(ledger.size),
            room: Arc::clone(self),
            client_took: Duration::ZERO,
            give_way: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // Every change is a whole one.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldRoom {
    /// As large as the body may become here.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Waits until there is room for so many bytes of the body in all, for so long.
    pub(super) async fn hold(&self, bytes: usize, wait: Duration) -> Result<(), NoRoom> {
        let bytes = pieces(bytes).min(self.most);
        let begun = Instant::now();
        loop {
            // Registered before looking, so that no change is missed.
            let freed = self.room.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let mut ledger = self.room.lock();
                if ledger.fits(self.id, bytes, self.most) {
                    ledger.give(self, bytes);
                    return Ok(());
                }
                if let Some(holding) = ledger.bodies.get_mut(&self.id) {
                    holding.phase = Phase::Waits;
                }
                ledger.make_way(Instant::now(), self.room.reading);
            }
            if begun.elapsed() >= wait {
                return Err(NoRoom::Full);
            }
            tokio::select! {
                () = &mut freed => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.give_way.notified() => return Err(NoRoom::GaveWay),
            }
        }
    }

    /// What `client` sends, unless it has to give way or all that it sent took too long, which is the inner error.
    pub(super) async fn read<T>(
        &mut self,
        client: impl Future<Output = T>,
    ) -> Result<Result<T, tokio::time::error::Elapsed>, NoRoom> {
        let begun = Instant::now();
        self.set_phase(Phase::Reads(begun));
        let left = self.room.reading.saturating_sub(self.client_took);
        let read = tokio::select! {
            read = tokio::time::timeout(left, client) => Ok(read),
            () = self.give_way.notified() => Err(NoRoom::GaveWay),
        };
        self.client_took += begun.elapsed();
        self.set_phase(Phase::Idle);
        read
    }

    /// Says that the body has come to its end: it needs no more than it has.
    pub(super) fn is_whole(&mut self) {
        let mut ledger = self.room.lock();
        if let Some(holding) = ledger.bodies.get_mut(&self.id) {
            self.most = holding.bytes;
            holding.most = holding.bytes;
            holding.gives_way = false;
        }
        drop(ledger);
        self.room.freed.notify_waiters();
    }

    /// Goes on with what another body room holds for the same body.
    pub(super) fn after(mut self, before: &Self) -> Self {
        self.client_took = before.client_took;
        self
    }

    fn set_phase(&self, phase: Phase) {
        if let Some(holding) = self.room.lock().bodies.get_mut(&self.id) {
            holding.phase = phase;
            holding.client_took = self.client_took;
        }
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        let mut ledger = self.room.lock();
        let Some(holding) = ledger.bodies.remove(&self.id) else { return };
        ledger.held -= holding.bytes;
        drop(ledger);
        self.room.freed.notify_waiters();
    }
}

fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE) * PIECE
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Runtime::new().unwrap()
    }

    /// Takes room if it is there at once.
    async fn takes(room: &HeldRoom, pieces: usize) -> bool {
        room.hold(pieces * PIECE, Duration::ZERO).await.is_ok()
    }

    #[test]
    fn a_body_that_has_hardly_begun_leaves_room_for_smaller_ones() {
        runtime().block_on(async {
            let room = BodyRoom::new(100 * PIECE, LONG);
            let [large, other, small] = [100, 100, 20].map(|most| room.begin(most * PIECE));
            assert!(takes(&large, 1).await);
            assert!(!takes(&other, 1).await, "neither could come to its end");
            assert!(takes(&small, 20).await, "it can, and then the large one");
            assert!(takes(&large, 80).await);
            assert!(!takes(&large, 81).await, "there is no more");
            drop(small);
            assert!(takes(&large, 100).await);
            drop(large);
            assert!(takes(&other, 1).await);
        });
    }

    #[test]
    fn a_body_that_is_whole_needs_no_more_than_it_has() {
        runtime().block_on(async {
            let room = BodyRoom::new(100 * PIECE, LONG);
            let (mut first, second) = (room.begin(100 * PIECE), room.begin(100 * PIECE));
            assert!(takes(&first, 10).await);
            assert!(!takes(&second, 1).await);
            first.is_whole();
            assert!(takes(&second, 90).await);
            assert!(!takes(&second, 91).await);
        });
    }

    #[test]
    fn who_waits_makes_a_client_that_sends_nothing_give_way() {
        runtime().block_on(async {
            let room = BodyRoom::new(100 * PIECE, LONG);
            let mut silent = room.begin(100 * PIECE);
            assert!(takes(&silent, 99).await);
            let reading = tokio::spawn(async move {
                let read = silent.read(std::future::pending::<()>()).await;
                read.map(|_| ())
            });
            tokio::task::yield_now().await;
            let begun = Instant::now();
            let other = room.begin(100 * PIECE);
            assert_eq!(other.hold(100 * PIECE, LONG).await, Ok(()));
            assert!(begun.elapsed() < 5 * PATIENCE, "{:?}", begun.elapsed());
            assert_eq!(reading.await.unwrap(), Err(NoRoom::GaveWay));
        });
    }

    #[test]
    fn a_client_that_is_in_time_is_waited_for() {
        let begun = Instant::now();
        let holding = |bytes, client_took| Holding {
            bytes,
            most: 3000,
            phase: Phase::Reads(begun),
            client_took,
            give_way: Arc::default(),
            gives_way: false,
        };
        let slow = |holding: Holding| holding.is_slow(begun, LONG).is_some();
        assert!(!slow(holding(1000, Duration::from_secs(9))));
        assert!(slow(holding(1000, Duration::from_secs(11))));
        assert!(!slow(holding(1, PATIENCE / 2)), "it has only begun");
        let begun_earlier = Holding { phase: Phase::Reads(begun), ..holding(2999, PATIENCE) };
        assert!(begun_earlier.is_slow(begun + PATIENCE, LONG).is_some(), "it sends nothing more");
        let waits = Holding { phase: Phase::Waits, ..holding(1, 9 * PATIENCE) };
        assert!(!slow(waits), "the server is slow, not the client");
    }
}
