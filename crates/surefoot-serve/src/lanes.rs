//! Lanes: many threads share one device, each on a stream of its own while it computes.
//!
//! [`Lanes::run`] gives a closure the device and a lane. If its key (model, shape, dtype) was never
//! run here, one caller runs it first, which compiles and tunes the kernels; other callers of the
//! same key wait for it without holding a lane. Then the closure gets a lane, computes on the
//! lane's stream and returns the lane, also when it panics. No lock is held while it runs, and
//! nothing waits for the whole device: the closure reads its own result, which waits for its own
//! stream only.
//!
//! On a device that computes asynchronously, a caller that would have to wait for a lane leaves its
//! closure to a worker thread that is awake ([`WorkerPool`]), first come, first served. On the CPU,
//! where the closure is the caller's own computation, the caller itself leases the lane.
//!
//! How many lanes are active on a GPU is measured during real work: more of them help until the
//! device, its driver or the CPU is busy, and cost throughput beyond that.
//!
//! The server does not use this: it gets more from one device by stacking requests into batches
//! ([`engine`](crate::engine)). Lanes are for programs that run models from many threads of their
//! own. `examples/many_threads.rs` shows that.

use std::hash::Hash;
use std::num::NonZero;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use surefoot::device::{OpenDevice, Stream};
use surefoot_lanes::{Begun, LaneTuner, OnceMap, Patience, Pool, PoolStatistics, WorkerPool};

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
    workers: Option<WorkerPool>,
    tuning: Option<Mutex<Tuning>>,
    pub(crate) compiled: OnceMap<K, ()>,
}

/// The search for how many lanes pay.
#[derive(Debug)]
struct Tuning {
    tuner: LaneTuner,
    started: Instant,
    /// Leases to let end before measuring: they began under another number of lanes.
    settling: u64,
}

impl<K: Eq + Hash + Clone> Lanes<K> {
    /// At most `most` lanes on `device`; as many of them are active as raise the throughput.
    pub fn new(device: Arc<OpenDevice>, most: usize) -> Self {
        if !device.is_asynchronous() {
            let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
            return Self::fixed(device, most.min(LANES_PER_CORE * cores));
        }
        Self::searching(device, most)
    }

    /// At most `most` lanes on `device`, whichever it is; how many of them pay is searched for.
    pub fn searching(device: Arc<OpenDevice>, most: usize) -> Self {
        let tuner = LaneTuner::new(most);
        let lanes = Self::fixed(device, most);
        lanes.pool.set_active(tuner.active());
        let tuning = Tuning { tuner, started: Instant::now(), settling: 0 };
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
            workers: asynchronous.then(|| WorkerPool::new(Arc::clone(&pool))),
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
        let outcome = match &self.workers {
            Some(workers) => {
                let (device, streams) = (Arc::clone(&self.device), Arc::clone(&self.streams));
                workers.run(patience, move |lane| streams[lane].run(|| forward(device.burn())))
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
        match &self.workers {
            // In the pool's own queue there are worker threads only.
            Some(workers) => PoolStatistics { waiting: workers.waiting(), ..statistics },
            None => statistics,
        }
    }

    /// Whether it is known how many lanes pay: enough was run, by enough callers.
    pub fn has_settled(&self) -> bool {
        self.tuning
            .as_ref()
            .is_none_or(|tuning| tuning.lock().is_ok_and(|tuning| tuning.tuner.has_settled()))
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
        let active = tuning.tuner.active();
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
        let next = tuning.tuner.measured(rate, elapsed);
        if next == active {
            self.pool.restart_meter();
        } else {
            self.pool.set_active(next);
            tuning.settling = active.max(next) as u64;
        }
    }
}
