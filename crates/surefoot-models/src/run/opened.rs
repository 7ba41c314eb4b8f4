//! A model folder or GGUF file that was opened and checked: it can be planned and loaded.
//!
//! No weights are in memory before [`Opened::load`], and a plan says how many will be after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use surefoot::Room;

use super::block::BlockRunner;
use super::model::{Model, next_number};
use super::norm::Norm;
use super::part_devices::PartDevices;
use super::recorded_step::Recordings;
use super::tuning::Tuning;
use crate::adapter::Adapter;
use crate::arch;
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::folder::checkpoint::Checkpoint;
use crate::folder::gguf::{self, GgufModel};
use crate::folder::header::WeightDtype;
use crate::folder::settings::Settings;
use crate::stream::limits::{DeviceMemory, MemoryLimits};
use crate::stream::meter::Meter;
use crate::stream::needs::Work;
use crate::stream::plan::Plan;
use crate::stream::process;
use crate::stream::store::Store;
use crate::weights::binding::Binding;
use crate::weights::choice::WeightChoice;
use crate::weights::format::Format;

/// A model folder whose parts were found and checked. No weights are in memory.
#[derive(Clone, Debug)]
pub struct Opened {
    /// What the model is made of.
    pub blueprint: Blueprint,
    /// Where its tensors are.
    pub binding: Binding,
    /// The configuration.
    pub settings: Settings,
    /// Where it is: the folder, or the GGUF file.
    pub folder: PathBuf,
    /// The bytes of all tensors in the files.
    pub file_bytes: u64,
    format: Format,
    weights: WeightChoice,
    baseline: Option<u64>,
    tuning: Option<Arc<Tuning>>,
    adapters: Vec<Arc<Tuning>>,
}

impl Opened {
    /// Opens the model folder or GGUF file at `path` and checks everything but the numbers themselves.
    pub fn new(path: &Path) -> Result<Self, ModelError> {
        let (folder, settings, checkpoint, blueprint);
        if gguf::is_gguf(path) {
            let model = GgufModel::open(path)?;
            let mut described = arch::describe(&model.settings)?;
            model.adapt(&mut described)?;
            folder = path.to_owned();
            (settings, checkpoint, blueprint) = (model.settings, model.checkpoint, described);
        } else {
            folder = crate::folder::existing(path)?;
            settings = Settings::open(&folder.join("config.json"))?;
            blueprint = arch::describe(&settings)?;
            checkpoint = Checkpoint::open(&folder)?;
        }
        let binding = Binding::new(&blueprint, &checkpoint)?;
        let format = Format::new(&Device::flex(), WeightDtype::F32);
        Ok(Self {
            blueprint,
            binding,
            settings,
            folder,
            file_bytes: checkpoint.bytes(),
            format,
            weights: WeightChoice::AsStored,
            baseline: None,
            tuning: None,
            adapters: Vec::new(),
        })
    }

    /// Plans and loads for products in `compute` on `device`, not for fp32 on the processor.
    #[must_use]
    pub fn on(mut self, device: &Device, compute: WeightDtype) -> Self {
        self.format = Format::new(device, compute);
        self
    }

    /// Quantises weights while they are loaded, if `choice` says so.
    #[must_use]
    pub fn with_weights(mut self, choice: WeightChoice) -> Self {
        self.weights = choice;
        self.binding.choose(choice);
        self
    }

    /// Rounds weights, also those of the token table, to the formats in which `other`, a model that is built alike, has
    /// them. Nothing if it is built otherwise.
    pub fn rounded_like(mut self, other: &Self) -> Option<Self> {
        self.binding.round_like(&other.binding).then_some(self)
    }

    /// In which form weights are loaded.
    pub fn weights(&self) -> WeightChoice {
        self.weights
    }

    /// Plans for a process that holds `baseline` bytes without this model, not for what it held at
    /// most so far: that includes models which are no longer loaded.
    #[must_use]
    pub fn above(mut self, baseline: u64) -> Self {
        self.baseline = Some(baseline);
        self
    }

    /// Runs the model with `tuning` from now on: its tensors go to the device that the model is loaded on.
    #[must_use]
    pub fn tuned(mut self, tuning: Tuning) -> Self {
        self.tuning = Some(Arc::new(tuning));
        self
    }

    /// Keeps an adapter, which must have been read for this model, for passes that ask for it by its number: the first
    /// one has the number 0. Other passes run without it.
    pub(crate) fn keep_adapter(&mut self, adapter: &Adapter) {
        self.binding.vector_bytes += adapter.bytes();
        self.adapters.push(Arc::new(adapter.tuning(&Device::flex())));
    }

    /// Runs the model with an adapter from now on, which must have been read for it.
    #[must_use]
    pub fn adapted(mut self, adapter: &Adapter) -> Self {
        self.binding.vector_bytes += adapter.bytes();
        self.tuned(adapter.tuning(&Device::flex()))
    }

    /// The form in which weights will be in memory.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Whether the model gives logits.
    pub fn has_head(&self) -> bool {
        self.binding.head.is_some()
    }

    /// The bytes of matrices that a pass over one token reads; of experts, those of the share that is chosen.
    pub fn pass_bytes(&self) -> u64 {
        let read = |matrix| (self.format.bytes(matrix) as f64 * matrix.used()) as u64;
        self.binding.matrices.iter().map(read).sum()
    }

    /// Tokens that end a text, as `generation_config.json` or else the configuration says.
    pub fn end_tokens(&self) -> Result<Vec<u32>, ModelError> {
        let generation = self.folder.join("generation_config.json");
        if generation.exists() {
            let ends = Settings::open(&generation)?.counts("eos_token_id")?;
            if !ends.is_empty() {
                return Ok(ends);
            }
        }
        self.settings.counts("eos_token_id")
    }

    /// Plans `work` in `budget` bytes for the whole process.
    pub fn plan(&self, work: &Work, budget: Option<u64>) -> Plan {
        self.plan_within(work, &MemoryLimits::shared(budget))
    }

    /// Plans `work` within limits for the host and the device.
    pub fn plan_within(&self, work: &Work, limits: &MemoryLimits) -> Plan {
        Plan::new(&self.blueprint, &self.binding, &self.format, self.baseline(), work, limits)
    }

    /// Plans `work` for a device that has `room`: in `budget` bytes, or in what the host and the
    /// device have if that is less. A model that does not fit is streamed without being asked.
    pub fn plan_in_room(&self, work: &Work, room: &Room, budget: Option<u64>) -> Plan {
        // Without the machine's limits first: the plan is then the same whatever else runs now.
        let plan = self.plan_within(work, &MemoryLimits::of_budget(room, budget));
        let limits = MemoryLimits::of_room(room);
        let within = |bytes: u64, limit: Option<u64>| limit.is_none_or(|limit| bytes <= limit);
        let fits_device = match (plan.device_bytes, limits.device) {
            (Some(bytes), DeviceMemory::Own { limit }) => within(bytes, limit),
            _ => true,
        };
        match within(plan.host_bytes, limits.host) && fits_device {
            true => plan,
            false => self.plan_within(work, &limits),
        }
    }

    /// Plans `work` so that a `share` of the matrices stays, from 0 to 1, whatever it needs.
    pub fn plan_with_share(&self, work: &Work, share: f64) -> Plan {
        let (blueprint, binding) = (&self.blueprint, &self.binding);
        Plan::with_share(blueprint, binding, &self.format, self.baseline(), work, share)
    }

    pub(crate) fn baseline(&self) -> u64 {
        self.baseline.unwrap_or_else(process::peak_bytes)
    }

    /// Loads what stays in memory by `plan`, which must be of this model.
    pub fn load(
        &self,
        plan: &Plan,
        device: &Device,
        meter: Arc<Meter>,
    ) -> Result<Model, ModelError> {
        self.load_parts(plan, PartDevices::single(device, self.blueprint.blocks.len()), meter)
    }

    /// [`Self::load`] with a device for each part.
    pub(crate) fn load_parts(
        &self,
        plan: &Plan,
        parts: PartDevices,
        meter: Arc<Meter>,
    ) -> Result<Model, ModelError> {
        let residency = &plan.residency;
        let Self { blueprint, binding, format, .. } = self.clone();
        let block = |(number, bound)| {
            parts.attributed(number, "loading a block", || {
                BlockRunner::load(number, &blueprint, bound, parts.of(number))
            })
        };
        let blocks = binding.blocks.iter().enumerate().map(block).collect::<Result<_, _>>()?;
        let norm = |bound: &Option<_>, part: usize| match bound {
            Some(bound) => parts.attributed(part, "loading a norm", || {
                let numbers = (blueprint.eps, blueprint.norm_offset);
                Norm::load(blueprint.norm, bound, numbers, parts.of(part)).map(Some)
            }),
            None => Ok(None),
        };
        let device = parts.of(0);
        Ok(Model {
            embedding_norm: norm(&binding.embedding_norm, 0)?,
            final_norm: norm(&binding.final_norm, usize::MAX)?,
            store: Store::load(&binding.matrices, residency, &parts, format.compute, meter)?,
            blocks,
            device: device.clone(),
            cpu_fallback: None,
            tuning: self.tuning.as_ref().map(|tuning| Arc::new(tuning.on(device))),
            adapters: self.adapters.iter().map(|tuning| Arc::new(tuning.on(device))).collect(),
            budgeted: plan.budget_bytes.is_some(),
            format: Format::new(device, format.compute),
            number: next_number(),
            records_no_steps: AtomicBool::new(false),
            recordings: Recordings::default(),
            parts,
            blueprint,
            binding,
        })
    }
}
