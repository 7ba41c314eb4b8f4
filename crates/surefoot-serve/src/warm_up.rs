//! Warm-up: what the first run of a key has to compile and tune is done before anyone waits for it.
//!
//! `surefoot::device` decides what is kept on disk for the next process: the
//! results of tuning, SPIR-V and CUDA's binaries are kept in the user's cache, shaders in WGSL and
//! Metal's by their drivers. A warm-up then takes as long as reading them.

use std::hash::Hash;

use burn::tensor::Device;

use crate::lanes::Lanes;

/// How far a warm-up is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'k, K> {
    /// How many keys are ready.
    pub ready: usize,
    /// How many there are.
    pub all: usize,
    /// The key that is next; none at the end.
    pub next: Option<&'k K>,
}

impl<K: Eq + Hash + Clone + Send + 'static> Lanes<K> {
    /// Runs `forward` once for each of `keys` that was not run yet, one after the other: a device
    /// compiles one kernel at a time. `progress` is told before each of them and at the end.
    /// Gives how many had to be run. At the first that fails it stops; those before it are ready.
    pub fn warm_up<E: Send + 'static>(
        &self,
        keys: &[K],
        forward: impl Fn(&K, &Device) -> Result<(), E> + Clone + Send + 'static,
        mut progress: impl FnMut(Progress<'_, K>),
    ) -> Result<usize, E> {
        let mut run = 0;
        for (ready, key) in keys.iter().enumerate() {
            progress(Progress { ready, all: keys.len(), next: Some(key) });
            // Another caller may run it at the same time; then this waits, and finds it ready.
            if self.compiled.get(key).is_none() {
                let (forward, which) = (forward.clone(), key.clone());
                self.run(key, move |device| forward(&which, device))?;
                run += 1;
            }
        }
        progress(Progress { ready: keys.len(), all: keys.len(), next: None });
        Ok(run)
    }
}
