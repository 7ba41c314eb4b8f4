//! Several models within one budget of memory: each is loaded when it is asked for, and the one that was used
//! least recently is unloaded when another one needs its memory.
//!
//! A model runs in a process of its own (a [`Worker`]), so that unloading gives back all of its memory, and
//! what one model's device does wrong costs no other model. The pool knows how many bytes each model may take
//! (its share) and keeps the sum of the shares of those that are loaded within the budget.
//!
//! Invariants:
//! - A model is unloaded only when nobody uses it. One that has to go takes no new requests; they wait until
//!   it can be loaded again.
//! - A request that waits for a model is answered: when the model is loaded, or when loading it has failed
//!   although no other model was loaded. A load that fails beside others is tried again with more memory,
//!   for which others are unloaded.

mod process;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub use process::ProcessLauncher;

/// Starts models.
pub trait Launcher: Send + Sync + 'static {
    /// Starts a model that may take `bytes` of memory. Returns when it takes requests.
    fn launch(&self, name: &str, bytes: u64) -> Result<Box<dyn Worker>, LaunchError>;
}

/// A model that is loaded.
pub trait Worker: Send + Sync {
    /// Where it takes requests.
    fn address(&self) -> SocketAddr;
    /// Whether it still runs.
    fn is_alive(&self) -> bool;
    /// Lets it finish what it has, and ends it. Returns when its memory is free.
    fn stop(&self);
}

/// Why a model could not be started.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the model '{name}' could not be loaded: {problem}")]
pub struct LaunchError {
    /// The model.
    pub name: String,
    /// What happened.
    pub problem: String,
}

/// Why a model can't be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no such model.
    #[error("the model '{0}' does not exist here")]
    Unknown(String),
    /// It could not be loaded.
    #[error(transparent)]
    Launch(LaunchError),
    /// The server ends.
    #[error("the server is shutting down")]
    Closed,
}

/// What a model is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelState {
    /// It takes no memory.
    Unloaded,
    /// It will take requests soon.
    Loading,
    /// It takes requests.
    Loaded,
    /// It finishes what it has, and then gives back its memory.
    Unloading,
}

impl fmt::Display for ModelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Unloading => "unloading",
        })
    }
}

/// What is known of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatus {
    /// What clients call it.
    pub name: String,
    /// What it is doing.
    pub state: ModelState,
    /// The bytes that it may take.
    pub share: u64,
    /// Requests that it works on.
    pub in_use: usize,
    /// Requests that wait until it is loaded.
    pub waiting: usize,
    /// How often it was loaded.
    pub loads: u64,
    /// How often loading it failed.
    pub failures: u64,
    /// How often it was unloaded to make room.
    pub evictions: u64,
}

struct Model {
    status: ModelStatus,
    worker: Option<Arc<dyn Worker>>,
    /// When it was last used, in uses of all models.
    last_used: u64,
    last_failure: Option<LaunchError>,
}

struct Models {
    all: Vec<Model>,
    uses: u64,
    is_closed: bool,
}

/// The models of a server, and who of them is loaded.
pub struct ModelPool {
    models: Mutex<Models>,
    budget: u64,
    launcher: Arc<dyn Launcher>,
    /// Told whenever anything changes that somebody may wait for.
    changed: Notify,
}

impl fmt::Debug for ModelPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelPool").field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// A model in use: it is not unloaded before this is dropped.
pub struct Lease {
    pool: Arc<ModelPool>,
    index: usize,
    address: SocketAddr,
}

impl Lease {
    /// Where the model takes requests.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.lock().all[self.index].status.in_use -= 1;
        self.pool.changed.notify_waiters();
    }
}

/// A request that waits for a model. Dropped when it got it, or when nobody waits any more.
struct WaitingRequest<'p> {
    pool: &'p ModelPool,
    index: usize,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.pool.lock().all[self.index].status.waiting -= 1;
    }
}

impl ModelPool {
    /// A pool of models, each with its name and the bytes that it needs at least, within a budget. None of
    /// them needs more than the budget.
    pub fn new(models: Vec<(String, u64)>, budget: u64, launcher: Arc<dyn Launcher>) -> Arc<Self> {
        let model = |(name, share): (String, u64)| Model {
            status: ModelStatus {
                name,
                state: ModelState::Unloaded,
                share: share.min(budget),
                in_use: 0,
                waiting: 0,
                loads: 0,
                failures: 0,
                evictions: 0,
            },
            worker: None,
            last_used: 0,
            last_failure: None,
        };
        let all = models.into_iter().map(model).collect();
        let models = Mutex::new(Models { all, uses: 0, is_closed: false });
        Arc::new(Self { models, budget, launcher, changed: Notify::new() })
    }

    /// What every model is doing.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.lock().all.iter().map(|model| model.status.clone()).collect()
    }

    /// The number of the process that the next request for a model meets: that which is loaded, or the one after it if it has ended.
    pub fn next_process(&self, name: &str) -> u64 {
        let models = self.lock();
        let model = models.all.iter().find(|model| model.status.name == name);
        model.map_or(0, |model| {
            let is_alive = model.worker.as_ref().is_some_and(|worker| worker.is_alive());
            model.status.loads + u64::from(!is_alive)
        })
    }

    /// The bytes that all models together may take.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Waits until a model is loaded, and keeps it loaded until the lease is dropped.
    pub async fn lease(self: &Arc<Self>, name: &str) -> Result<Lease, PoolError> {
        let mut failures_before = None;
        let mut waiting = None;
        loop {
            // Registered before looking, so that no change is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut models = self.lock();
                if models.is_closed {
                    return Err(PoolError::Closed);
                }
                let index = models.all.iter().position(|model| model.status.name == name);
                let index = index.ok_or_else(|| PoolError::Unknown(name.to_owned()))?;
                let model = &models.all[index];
                let failures = model.status.failures;
                if let Some(error) = &model.last_failure
                    && failures_before.is_some_and(|before| before < failures)
                {
                    return Err(PoolError::Launch(error.clone()));
                }
                failures_before.get_or_insert(failures);
                if let Some(address) = self.advance(&mut models, index) {
                    return Ok(Lease { pool: Arc::clone(self), index, address });
                }
                if waiting.is_none() {
                    models.all[index].status.waiting += 1;
                    waiting = Some(WaitingRequest { pool: self, index });
                }
            }
            changed.await;
        }
    }

    /// Takes the next step towards a loaded model; where it takes requests, if it is loaded.
    fn advance(self: &Arc<Self>, models: &mut Models, index: usize) -> Option<SocketAddr> {
        let model = &mut models.all[index];
        if model.status.state == ModelState::Loaded {
            match &model.worker {
                Some(worker) if worker.is_alive() => {
                    models.uses += 1;
                    model.last_used = models.uses;
                    model.status.in_use += 1;
                    return Some(worker.address());
                }
                // It died: whoever used it finds out, and it is started again.
                _ => {
                    model.worker = None;
                    model.status.state = ModelState::Unloaded;
                }
            }
        }
        if model.status.state != ModelState::Unloaded {
            return None;
        }
        let needed = model.status.share;
        let taken: u64 = models
            .all
            .iter()
            .filter(|model| model.status.state != ModelState::Unloaded)
            .map(|model| model.status.share)
            .sum();
        if taken + needed <= self.budget {
            self.load(&mut models.all[index], index);
        } else if !models.all.iter().any(|model| model.status.state == ModelState::Unloading) {
            self.evict_one(models);
        }
        None
    }

    fn load(self: &Arc<Self>, model: &mut Model, index: usize) {
        model.status.state = ModelState::Loading;
        let (name, bytes) = (model.status.name.clone(), model.status.share);
        let pool = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let launched = pool.launcher.launch(&name, bytes);
            let mut models = pool.lock();
            let is_alone =
                models.all.iter().filter(|m| m.status.state != ModelState::Unloaded).count() == 1;
            let is_closed = models.is_closed;
            let model = &mut models.all[index];
            match launched {
                Ok(worker) if !is_closed => {
                    model.worker = Some(Arc::from(worker));
                    model.status.state = ModelState::Loaded;
                    model.status.loads += 1;
                    model.last_failure = None;
                }
                Ok(worker) => {
                    model.status.state = ModelState::Unloaded;
                    drop(models);
                    worker.stop();
                    pool.changed.notify_waiters();
                    return;
                }
                Err(error) => {
                    model.status.state = ModelState::Unloaded;
                    if is_alone {
                        model.status.failures += 1;
                        model.last_failure = Some(error);
                    } else {
                        // It may have failed for want of memory: it gets all of it.
                        model.status.share = pool.budget;
                    }
                }
            }
            drop(models);
            pool.changed.notify_waiters();
        });
    }

    /// Makes the model that was used least recently finish and go, idle ones first.
    fn evict_one(self: &Arc<Self>, models: &mut Models) {
        let loaded = models.all.iter_mut().enumerate();
        let victim = loaded
            .filter(|(_, model)| model.status.state == ModelState::Loaded)
            .min_by_key(|(_, model)| (model.status.in_use > 0, model.last_used));
        let Some((index, model)) = victim else { return };
        model.status.state = ModelState::Unloading;
        model.status.evictions += 1;
        let worker = model.worker.take();
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            pool.unused(index).await;
            let stopped = tokio::task::spawn_blocking(move || {
                if let Some(worker) = worker {
                    worker.stop();
                }
            });
            // A panic in it was told when it happened.
            let _ = stopped.await;
            pool.lock().all[index].status.state = ModelState::Unloaded;
            pool.changed.notify_waiters();
        });
    }

    /// Waits until nobody uses a model.
    async fn unused(&self, index: usize) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.lock().all[index].status.in_use == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Ends all models, after they have finished what they have. No model is loaded afterwards.
    pub fn close(&self) {
        let workers: Vec<Arc<dyn Worker>> = {
            let mut models = self.lock();
            models.is_closed = true;
            models.all.iter_mut().filter_map(|model| model.worker.take()).collect()
        };
        self.changed.notify_waiters();
        std::thread::scope(|scope| {
            for worker in &workers {
                scope.spawn(|| worker.stop());
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Models> {
        // Every change is a whole one.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
