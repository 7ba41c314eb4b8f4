//! A model that is loaded: what of it is in memory, on which device, and what running it costs.
//! [`super::opened::Opened`] loads it; `pass.rs` runs batches through it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use burn::tensor::Device;
use surefoot::Footing;
use surefoot::device::DeviceName;

use super::batch::TokenBatch;
use super::block::BlockRunner;
use super::cpu_fallback::{CpuFallback, MovedPart};
use super::norm::Norm;
use super::opened::Opened;
use super::output::{Output, Want};
use super::part_devices::PartDevices;
use super::recorded_step::Recordings;
use super::tuning::Tuning;
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::folder::header::WeightDtype;
use crate::stream::meter::Meter;
use crate::stream::needs::Work;
use crate::stream::store::{Session, Store};
use crate::weights::binding::Binding;
use crate::weights::format::Format;

/// A model that is ready to run.
pub struct Model {
    pub(crate) blueprint: Blueprint,
    pub(crate) binding: Binding,
    pub(crate) store: Store,
    pub(super) embedding_norm: Option<Norm>,
    pub(crate) blocks: Vec<BlockRunner>,
    pub(crate) final_norm: Option<Norm>,
    /// The first block's: where a pass begins.
    pub(crate) device: Device,
    /// Those of all blocks and of the head.
    pub(crate) parts: PartDevices,
    pub(crate) format: Format,
    pub(crate) cpu_fallback: Option<CpuFallback>,
    pub(super) budgeted: bool,
    pub(crate) tuning: Option<Arc<Tuning>>,
    /// Adapters that passes ask for by their numbers.
    pub(super) adapters: Vec<Arc<Tuning>>,
    /// No other model of this process has it.
    pub(super) number: u64,
    /// Whether the device refused a recording of a step of this model.
    pub(super) records_no_steps: AtomicBool,
    /// Those of its steps.
    pub(super) recordings: Recordings,
}

/// A number for a model that no other has.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Model {
    /// Opens `folder`, plans `work` in `budget` bytes and loads what stays.
    pub fn open(
        folder: &Path,
        work: &Work,
        budget: Option<u64>,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let opened = Opened::new(folder)?;
        let plan = opened.plan(work, budget).checked()?;
        opened.load(&plan, device, Arc::default())
    }

    /// Lets a block or the head that its device, `home` of `footing`, can't run go to the CPU
    /// alone. A model that is laid over several devices knows the home of each part.
    #[must_use]
    pub fn guarded(mut self, footing: Arc<Footing>, home: DeviceName) -> Self {
        let homes = match self.parts.names() {
            Some(names) => names.to_vec(),
            None => vec![home; self.blocks.len() + 1],
        };
        let is_needed = self.parts.names().is_some() || home != DeviceName::CPU;
        self.cpu_fallback = is_needed.then(|| CpuFallback::new(footing, homes));
        self
    }

    /// Confirms each block's result before the next begins, or no longer does: slower, but an error
    /// that a GPU would show later is then the block's that made it.
    pub(crate) fn confirm_blocks(&self, on: bool) {
        if let Some(fallback) = &self.cpu_fallback {
            fallback.confirm_blocks(on);
        }
    }

    /// The parts of a guarded model that ran on the CPU: `block 3`, `head`.
    pub fn on_cpu(&self) -> Vec<MovedPart> {
        self.cpu_fallback.as_ref().map_or_else(Vec::new, CpuFallback::on_cpu)
    }

    /// A block's norms and biases on another device.
    pub(crate) fn block_on(
        &self,
        number: usize,
        device: &Device,
    ) -> Result<BlockRunner, ModelError> {
        BlockRunner::load(number, &self.blueprint, &self.binding.blocks[number], device)
    }

    /// Whether steps are no longer recorded ([`super::recorded_step`]).
    pub(super) fn records_no_steps(&self) -> bool {
        self.records_no_steps.load(Ordering::Relaxed)
    }

    /// Records no more steps.
    pub(super) fn record_no_steps(&self) {
        self.records_no_steps.store(true, Ordering::Relaxed);
    }

    /// Whether the kernels of its devices run all blocks in a pass of this session, and write into the cache in place.
    pub(crate) fn decodes_in_place(&self, session: &Session<'_>) -> bool {
        let moved = self.cpu_fallback.as_ref().is_some_and(|fallback| !fallback.is_idle());
        let fused = |number: usize| {
            self.blocks[number].fused(&self.blueprint, session, self.parts.of(number)).is_some()
        };
        !moved
            && self.tuning.is_none()
            && session.adapters().iter().all(Option::is_none)
            && (0..self.blocks.len()).all(fused)
    }

    /// What the model is made of.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Whether the model gives logits.
    pub fn has_head(&self) -> bool {
        self.binding.head.is_some()
    }

    /// The dtype of products with weights.
    pub fn compute(&self) -> WeightDtype {
        self.format.compute
    }

    /// Counts of what loading and running cost.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.store.meter
    }

    /// Brings in all that streams, `passes` times, and computes nothing with it: what a pass can't
    /// do without. Gives the seconds of one.
    pub fn read_through(&self, passes: usize) -> Result<f64, ModelError> {
        let begun = Instant::now();
        self.store.read_through(passes)?;
        Ok(begun.elapsed().as_secs_f64() / passes.max(1) as f64)
    }

    /// Runs one batch without a cache.
    pub fn forward(&self, batch: &TokenBatch, want: Want) -> Result<Output, ModelError> {
        self.pass(batch, want, &mut self.store.open(1), None)
    }
}
