//! The pool with models that are made up: who is loaded when, and that nobody waits for ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// Models that take no time, keep to a memory of their own, and may fail beside others.
#[derive(Default)]
struct Made {
    memory: u64,
    /// Bytes that each model really takes, if it is not its share.
    really: HashMap<&'static str, u64>,
    used: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    launches: Mutex<Vec<String>>,
}

struct MadeWorker {
    bytes: u64,
    used: Arc<AtomicU64>,
    alive: AtomicBool,
}

impl Launcher for Made {
    fn launch(&self, name: &str, bytes: u64) -> Result<Box<dyn Worker>, LaunchError> {
        self.launches.lock().unwrap().push(name.to_owned());
        let bytes = self.really.get(name).copied().unwrap_or(bytes);
        let used = self.used.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if used > self.memory {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            return Err(LaunchError { name: name.to_owned(), problem: "out of memory".to_owned() });
        }
        self.most.fetch_max(used, Ordering::SeqCst);
        let used = Arc::clone(&self.used);
        Ok(Box::new(MadeWorker { bytes, used, alive: AtomicBool::new(true) }))
    }
}

impl Worker for MadeWorker {
    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        assert!(self.alive.swap(false, Ordering::SeqCst), "stopped once");
        self.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn models(shares: &[(&str, u64)]) -> Vec<(String, u64)> {
    shares.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect()
}

fn states(pool: &ModelPool) -> Vec<ModelState> {
    pool.status().iter().map(|status| status.state).collect()
}

#[test]
fn a_model_is_loaded_when_it_is_asked_for_and_the_least_recently_used_one_goes() {
    use ModelState::{Loaded, Unloaded};
    runtime().block_on(async {
        let made = Arc::new(Made { memory: 10, ..Made::default() });
        let pool = ModelPool::new(models(&[("a", 5), ("b", 5), ("c", 5)]), 10, made.clone());
        assert_eq!(states(&pool), [Unloaded, Unloaded, Unloaded]);
        for name in ["a", "b", "a"] {
            drop(pool.lease(name).await.unwrap());
        }
        assert_eq!(states(&pool), [Loaded, Loaded, Unloaded]);
        drop(pool.lease("c").await.unwrap());
        assert_eq!(states(&pool), [Loaded, Unloaded, Loaded], "b was used least recently");
        drop(pool.lease("b").await.unwrap());
        assert_eq!(states(&pool), [Unloaded, Loaded, Loaded]);
        assert_eq!(*made.launches.lock().unwrap(), ["a", "b", "c", "b"]);
        assert!(made.most.load(Ordering::SeqCst) <= 10);
        assert!(matches!(pool.lease("d").await, Err(PoolError::Unknown(_))));
        pool.close();
        assert_eq!(made.used.load(Ordering::SeqCst), 0);
        assert!(matches!(pool.lease("a").await, Err(PoolError::Closed)));
    });
}

#[test]
fn a_model_in_use_is_not_unloaded_and_whoever_waits_for_its_memory_is_answered() {
    runtime().block_on(async {
        let made = Arc::new(Made { memory: 10, ..Made::default() });
        let pool = ModelPool::new(models(&[("a", 8), ("b", 8)]), 10, made.clone());
        let held = pool.lease("a").await.unwrap();
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.lease("b").await.map(drop) }
        });
        while states(&pool)[0] != ModelState::Unloading {
            tokio::task::yield_now().await;
        }
        assert_eq!(made.used.load(Ordering::SeqCst), 8, "it is still in use");
        // Whoever asks for it now waits until it is loaded again, and does not keep b out.
        let again = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.lease("a").await.map(drop) }
        });
        drop(held);
        waiting.await.unwrap().unwrap();
        again.await.unwrap().unwrap();
        assert!(made.most.load(Ordering::SeqCst) <= 10);
    });
}

#[test]
fn a_load_that_runs_out_of_memory_is_tried_again_without_the_others() {
    runtime().block_on(async {
        // b takes more than its share: it does not fit beside a.
        let really = HashMap::from([("b", 7)]);
        let made = Arc::new(Made { memory: 10, really, ..Made::default() });
        let pool = ModelPool::new(models(&[("a", 5), ("b", 5)]), 10, made.clone());
        drop(pool.lease("a").await.unwrap());
        drop(pool.lease("b").await.unwrap());
        assert_eq!(states(&pool), [ModelState::Unloaded, ModelState::Loaded]);
        assert_eq!(*made.launches.lock().unwrap(), ["a", "b", "b"]);
        assert_eq!(pool.status()[0].evictions, 1);
        drop(pool.lease("a").await.unwrap());
    });
}

#[test]
fn a_load_that_fails_alone_is_told_to_all_that_wait_and_tried_again_for_the_next() {
    runtime().block_on(async {
        let really = HashMap::from([("a", 99)]);
        let made = Arc::new(Made { memory: 10, really, ..Made::default() });
        let pool = ModelPool::new(models(&[("a", 5)]), 10, made.clone());
        let all = (0..8).map(|_| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { pool.lease("a").await.map(drop) })
        });
        for waiting in all.collect::<Vec<_>>() {
            let error = waiting.await.unwrap().unwrap_err();
            assert!(error.to_string().contains("out of memory"), "{error}");
        }
        let before = made.launches.lock().unwrap().len();
        assert!(pool.lease("a").await.is_err());
        assert_eq!(made.launches.lock().unwrap().len(), before + 1);
    });
}
