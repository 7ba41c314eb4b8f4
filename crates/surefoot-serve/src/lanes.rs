//! Lanes: many callers, one device, each with a stream of its own while it computes.
//!
//! Protocol of a run: if the key was never run here, one caller has the turn to run it first, which
//! compiles and tunes what it needs, and the others of that key wait for it without holding a lane.
//! Then `forward` gets a lane, computes on the lane's stream and gives the lane back, in a panic
//! too. No lock is held while it runs, and nothing waits for the whole device: `forward` reads its own
//! result, and that waits for its own stream.
//!
//! On a device that computes by itself a caller that would have to wait for a lane leaves its
//! `forward` to a thread that is awake ([`Hands`]), first come first served. Where a forward
//! is the caller's own computing, the caller leases the lane, first come first served within a millisecond.
//!
//! How many lanes are active on a GPU is found by measurement: more of them pay until the device, its
//! driver or the processor is busy, and beyond that they cost. The others wait their turn.

use std::hash::Hash;
use std::num::NonZero;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use surefoot::device::{OpenDevice, Stream};
use surefoot_lanes::{Begun, Climb, Hands, OnceMap, Patience, Pool, PoolStatistics};

/// The most lanes that are tried where nothing else is asked for. Each lane that was ever used
/// keeps memory on its device.
pub const MOST_LANES: usize = 32;

/// Where a forward runs on its caller's thread there is nothing to search for: the system shares the
/// cores out. A few lanes for each keep it busy while threads change places.
const LANES_PER_CORE: usize = 8;

/// Callers whose forwards are far shorter than this change places once in so long, not after each.
const SLICE: Duration = Duration::from_millis(1);

/// A window of measurement is no shorter, and has four forwards, and two of each lane.
const WINDOW: Duration = Duration::from_millis(80);

/// Callers share the lanes of one device. `K` names what is compiled once: model, shape, dtype.
#[derive(Debug)]
pub struct Lanes<K> {
    device: Arc<OpenDevice>,
    streams: Arc<[Stream]>,
    pool: Arc<Pool>,
    hands: Option<Hands>,
    tuning: Option<Mutex<Tuning>>,
    pub(crate) compiled: OnceMap<K, ()>,
}

/// The search for how many lanes pay.
#[derive(Debug)]
struct Tuning {
    climb: Climb,
    started: Instant,
    /// Leases to let end before measuring: they began under another number of lanes.
    settling: u64,
}

impl<K: Eq + Hash + Clone> Lanes<K> {
    /// At most `most` lanes on `device`; as many of them are active as pay.
    pub fn new(device: Arc<OpenDevice>, most: usize) -> Self {
        if !device.is_asynchronous() {
            let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
            return Self::fixed(device, most.min(LANES_PER_CORE * cores));
        }
        Self::searching(device, most)
    }

    /// At most `most` lanes on `device`, whichever it is; how many of them pay is searched for.
    pub fn searching(device: Arc<OpenDevice>, most: usize) -> Self {
        let climb = Climb::new(most);
        let lanes = Self::fixed(device, most);
        lanes.pool.set_active(climb.active());
        let tuning = Tuning { climb, started: Instant::now(), settling: 0 };
        Self { tuning: Some(Mutex::new(tuning)), ..lanes }
    }

    /// `lanes` lanes on `device`, always all of them.
    pub fn fixed(device: Arc<OpenDevice>, lanes: usize) -> Self {
        let lanes = lanes.max(1);
        let asynchronous = device.is_asynchronous();
        let pool = Arc::new(match asynchronous {
            true => Pool::new(lanes),
            false => Pool::with_slice(lanes, SLICE),
        });
        Self {
            device,
            streams: (0..lanes).map(|_| Stream::new()).collect(),
            hands: asynchronous.then(|| Hands::new(Arc::clone(&pool))),
            pool,
            tuning: None,
            compiled: OnceMap::new(),
        }
    }

    /// The device that all of this is on.
    pub fn device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    /// Runs `forward` on a lane of its own, as soon as there is one. It should read its result
    /// before it returns: what is read outside of the lane may wait for others.
    ///
    /// `forward` may run on another thread than its caller's, so it owns what it uses; a model that is
    /// shared is in an [`Arc`].
    ///
    /// `forward` must not run anything on these lanes itself: it could wait for its own lane.
    pub fn run<T: Send + 'static, E: Send + 'static>(
        &self,
        key: &K,
        forward: impl FnOnce(&Device) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        match self.run_with(Patience::Forever, key, forward)? {
            Some(value) => Ok(value),
            None => unreachable!("patience without end does not run out"),
        }
    }

    /// Runs `forward` if there is a lane now and nobody else is compiling `key`.
    pub fn try_run<T: Send + 'static, E: Send + 'static>(
        &self,
        key: &K,
        forward: impl FnOnce(&Device) -> Result<T, E> + Send + 'static,
    ) -> Result<Option<T>, E> {
        self.run_with(Patience::None, key, forward)
    }

    /// Runs `forward` if there is a lane before `deadline`. Once it runs, it runs to its end.
    pub fn run_until<T: Send + 'static, E: Send + 'static>(
        &self,
        deadline: Instant,
        key: &K,
        forward: impl FnOnce(&Device) -> Result<T, E> + Send + 'static,
    ) -> Result<Option<T>, E> {
        self.run_with(Patience::Until(deadline), key, forward)
    }

    fn run_with<T: Send + 'static, E: Send + 'static>(
        &self,
        patience: Patience,
        key: &K,
        forward: impl FnOnce(&Device) -> Result<T, E> + Send + 'static,
    ) -> Result<Option<T>, E> {
        let turn = match self.compiled.begin(key, patience) {
            Begun::Made(()) => None,
            Begun::Mine(turn) => Some(turn),
            Begun::Busy => return Ok(None),
        };
        let outcome = match &self.hands {
            Some(hands) => {
                let (device, streams) = (Arc::clone(&self.device), Arc::clone(&self.streams));
                hands.run(patience, move |lane| streams[lane].run(|| forward(device.burn())))
            }
            None => self
                .pool
                .lease_with(patience)
                .map(|lease| self.streams[lease.lane()].run(|| forward(self.device.burn()))),
        };
        let Some(value) = outcome.transpose()? else { return Ok(None) };
        match turn {
            // A first run is slow for its own reasons and says nothing of the lanes.
            Some(turn) => {
                self.pool.restart_meter();
                turn.finish(());
            }
            None => self.tune(),
        }
        Ok(Some(value))
    }

    /// How many keys were compiled, or tuned, or whatever a first run does.
    pub fn compiled(&self) -> u64 {
        self.compiled.initialisations()
    }

    /// How many lanes are in use and how many callers wait.
    pub fn statistics(&self) -> PoolStatistics {
        let statistics = self.pool.statistics();
        match &self.hands {
            // In the pool's own queue there are hands only.
            Some(hands) => PoolStatistics { waiting: hands.waiting(), ..statistics },
            None => statistics,
        }
    }

    /// Whether it is known how many lanes pay: enough was run, by enough callers.
    pub fn has_settled(&self) -> bool {
        self.tuning
            .as_ref()
            .is_none_or(|tuning| tuning.lock().is_ok_and(|tuning| tuning.climb.has_settled()))
    }

    /// At the end of a window, tells its rate and takes the number of lanes for the next.
    fn tune(&self) {
        // Where another caller is at it, this one need not.
        let Some(Ok(mut tuning)) = self.tuning.as_ref().map(Mutex::try_lock) else { return };
        let reading = self.pool.reading();
        if reading.releases < tuning.settling {
            return;
        }
        if tuning.settling > 0 {
            tuning.settling = 0;
            self.pool.restart_meter();
            return;
        }
        let active = tuning.climb.active();
        let enough = 4.max(2 * active as u64);
        let measured = reading.full >= WINDOW && reading.full_releases >= enough;
        let starved = reading.elapsed >= 2 * WINDOW
            && reading.releases >= 4 * enough
            && reading.full < reading.elapsed / 2;
        if !measured && !starved {
            return;
        }
        let rate =
            measured.then(|| reading.full_releases as f64 / reading.full.as_secs_f64().max(1e-9));
        let elapsed = tuning.started.elapsed();
        let next = tuning.climb.measured(rate, elapsed);
        if next == active {
            self.pool.restart_meter();
        } else {
            self.pool.set_active(next);
            tuning.settling = active.max(next) as u64;
        }
    }
}
