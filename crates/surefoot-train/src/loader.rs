//! Loading batches: in the thread that trains, or ahead of it in others.
//!
//! The plan of an epoch (which samples form which batch) depends on the seed alone. Workers take
//! batches from it in order and each is handed over in its place, so what is trained on is the
//! same whatever the number of workers. At most `prefetch` batches are loaded or being loaded at
//! any time. A panic while reading costs the sample that was read, not the worker.

mod choose;
mod recipe;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use surefoot::{Fault, FaultKind};

use crate::batch::HostBatch;

pub use choose::Loading;
pub use recipe::{Recipe, plan};

/// A batch, or why there is none.
pub type Loaded = Result<HostBatch, Fault>;
type Job = (Vec<usize>, SyncSender<Loaded>);

/// Gives the batches of an epoch in order.
pub struct Loader {
    recipe: Recipe,
    epoch: u64,
    waiting: VecDeque<Vec<usize>>,
    coming: VecDeque<Receiver<Loaded>>,
    prefetch: usize,
    jobs: Option<Sender<Job>>,
    workers: Vec<JoinHandle<()>>,
}

impl Loader {
    /// Starts loading `plan` with threads; without any, each batch is loaded when it is asked for.
    pub fn start(recipe: Recipe, epoch: u64, plan: Vec<Vec<usize>>, loading: Loading) -> Self {
        let Loading { workers, prefetch, .. } = loading;
        let mut loader = Self {
            recipe,
            epoch,
            waiting: plan.into(),
            coming: VecDeque::new(),
            prefetch: prefetch.max(1),
            jobs: None,
            workers: Vec::new(),
        };
        if workers > 0 && !loader.waiting.is_empty() {
            let (jobs, queue) = channel::<Job>();
            let queue = Arc::new(Mutex::new(queue));
            for number in 0..workers.min(loader.waiting.len()) {
                let (recipe, queue) = (loader.recipe.clone(), Arc::clone(&queue));
                let thread = std::thread::Builder::new().name(format!("loader {number}"));
                // Without threads the batches are loaded where they are needed.
                if let Ok(worker) = thread.spawn(move || work(&recipe, epoch, &queue)) {
                    loader.workers.push(worker);
                }
            }
            loader.jobs = (!loader.workers.is_empty()).then_some(jobs);
            loader.order_ahead();
        }
        loader
    }

    /// Changes how many batches may be loaded ahead.
    pub fn set_prefetch(&mut self, prefetch: usize) {
        self.prefetch = prefetch.max(1);
        self.order_ahead();
    }

    /// The next batch if nobody has to be waited for: it is there, or it is loaded here anyway.
    pub fn next_if_ready(&mut self) -> Option<Loaded> {
        let Some(first) = self.coming.front() else { return self.next() };
        match first.try_recv() {
            Err(TryRecvError::Empty) => None,
            // A thread that ended is told of by `next`.
            Err(TryRecvError::Disconnected) => self.next(),
            Ok(loaded) => {
                self.coming.pop_front();
                self.order_ahead();
                Some(loaded)
            }
        }
    }

    fn order_ahead(&mut self) {
        let Some(jobs) = &self.jobs else { return };
        while self.coming.len() < self.prefetch {
            let Some(samples) = self.waiting.pop_front() else { return };
            let (hand_over, receive) = sync_channel(1);
            if let Err(refused) = jobs.send((samples, hand_over)) {
                self.waiting.push_front(refused.0.0);
                return;
            }
            self.coming.push_back(receive);
        }
    }
}

fn work(recipe: &Recipe, epoch: u64, queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((samples, hand_over)) = job else { return };
        let loaded = catch_unwind(AssertUnwindSafe(|| recipe.make(&samples, epoch)))
            .unwrap_or_else(|_| {
                Err(Fault::new(FaultKind::DataLoading, "load", "a loading thread panicked"))
            });
        // Nobody waits for it any more when the run was stopped.
        let _ = hand_over.send(loaded);
    }
}

impl Iterator for Loader {
    type Item = Loaded;

    fn next(&mut self) -> Option<Loaded> {
        let Some(coming) = self.coming.pop_front() else {
            let samples = self.waiting.pop_front()?;
            return Some(self.recipe.make(&samples, self.epoch));
        };
        let loaded = coming.recv().unwrap_or_else(|_| {
            Err(Fault::new(FaultKind::DataLoading, "load", "a loading thread ended"))
        });
        self.order_ahead();
        Some(loaded)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.jobs = None;
        self.coming.clear();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OnBadSample;
    use crate::data::{Augment, Form, Label, Sample, Source, Target, Transform};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// Numbered samples, of which some are bad; counts how many batches' worth are out at once.
    struct Numbers {
        count: usize,
        reads: AtomicUsize,
    }

    impl Source for Numbers {
        fn len(&self) -> usize {
            self.count
        }

        fn form(&self) -> Form {
            Form::Dense { channels: 1, height: 1, width: 1, target: Target::Classes(2) }
        }

        fn read(&self, at: usize) -> Result<Sample, String> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            match at {
                13 => Err("unlucky".to_owned()),
                17 => panic!("worse"),
                _ => Ok(Sample::Dense { values: vec![at as f32], label: Label::Class(at % 2) }),
            }
        }

        fn name(&self, at: usize) -> String {
            format!("number {at}")
        }
    }

    fn recipe(count: usize, on_bad_sample: OnBadSample) -> Recipe {
        let source = Arc::new(Numbers { count, reads: AtomicUsize::new(0) });
        let augment = Augment { flip: true, crop: 0 };
        let transform = Arc::new(Transform::learn(
            &Numbers { count: 10, reads: AtomicUsize::new(0) },
            false,
            augment,
        ));
        Recipe { source, transform, on_bad_sample, seed: Some(1), class_weights: None }
    }

    fn loading(workers: usize, prefetch: usize) -> Loading {
        Loading { workers, prefetch, staging: false, load_seconds: 0.0 }
    }

    #[test]
    fn the_order_is_the_same_whatever_the_number_of_workers() {
        let batches = |workers: usize| {
            let recipe = recipe(200, OnBadSample::Skip);
            let plan = plan(200, 7, Some(3), 2);
            let loading = loading(workers, 4);
            Loader::start(recipe, 2, plan, loading).map(Result::unwrap).collect::<Vec<_>>()
        };
        let alone = batches(0);
        assert_eq!(alone.len(), 29);
        for workers in [1, 2, 5, 16] {
            assert_eq!(batches(workers), alone, "{workers}");
        }
    }

    #[test]
    fn a_bad_sample_and_a_panic_cost_one_sample_if_they_are_skipped() {
        let loader =
            Loader::start(recipe(40, OnBadSample::Skip), 0, plan(40, 10, None, 0), loading(2, 2));
        let batches: Vec<HostBatch> = loader.map(Result::unwrap).collect();
        assert_eq!(batches.iter().map(HostBatch::samples).sum::<usize>(), 38);
        assert_eq!(batches[1].skipped, ["number 13: unlucky", "number 17: reading it panicked"]);
    }

    #[test]
    fn a_worker_that_fails_fails_one_batch() {
        let loader =
            Loader::start(recipe(40, OnBadSample::Fail), 0, plan(40, 10, None, 0), loading(2, 2));
        let batches: Vec<Loaded> = loader.collect();
        assert_eq!(batches.iter().filter(|batch| batch.is_ok()).count(), 3);
        let fault = batches[1].clone().unwrap_err();
        assert_eq!(fault.kind, FaultKind::DataLoading);
        assert!(fault.root_cause().contains("number 13: unlucky"), "{fault}");
    }

    #[test]
    fn no_more_batches_are_loaded_than_may_wait() {
        let source = Arc::new(Numbers { count: 10, reads: AtomicUsize::new(0) });
        let recipe = Recipe { source: source.clone(), ..recipe(10, OnBadSample::Fail) };
        let mut loader = Loader::start(recipe, 0, plan(10, 1, None, 0), loading(3, 2));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(source.reads.load(Ordering::SeqCst), 2);
        loader.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(source.reads.load(Ordering::SeqCst), 3);
        loader.next_if_ready().unwrap().unwrap();
        loader.set_prefetch(3);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(source.reads.load(Ordering::SeqCst), 5);
    }

    proptest! {
        #[test]
        fn a_plan_holds_each_sample_once(samples in 0usize..100, batch in 1usize..20, epoch: u64) {
            let mut all: Vec<usize> = plan(samples, batch, Some(9), epoch).concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..samples).collect::<Vec<_>>());
        }
    }
}
