//! A model that is ready to run.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{Device, Int, Tensor, TensorData};
use surefoot::device::DeviceName;
use surefoot::fault::from_error;
use surefoot::recover::Point;
use surefoot::recover::drill::Handle;
use surefoot::{Fault, FaultKind, Footing, Room};

use super::attention::{AttentionMask, LastMask};
use super::batch::TokenBatch;
use super::block::{BlockRunner, Pass};
use super::cache::Cache;
use super::cpu_fallback::{CpuFallback, MovedPart};
use super::norm::Norm;
use super::observe::{Boundary, Observer};
use super::rotary::Rotation;
use super::tuning::Tuning;
use crate::adapter::Adapter;
use crate::arch;
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::folder::checkpoint::{Checkpoint, Stored};
use crate::folder::gguf::{self, GgufModel};
use crate::folder::header::WeightDtype;
use crate::folder::settings::Settings;
use crate::stream::limits::{DeviceMemory, MemoryLimits};
use crate::stream::meter::Meter;
use crate::stream::needs::Work;
use crate::stream::plan::Plan;
use crate::stream::process;
use crate::stream::store::{Session, Store};
use crate::weights::binding::Binding;
use crate::weights::choice::WeightChoice;
use crate::weights::convert;
use crate::weights::format::Format;

/// Which logits a pass should give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None.
    None,
    /// Of the last position of each sequence.
    Last,
    /// Of every position.
    All,
}

/// What a pass should give.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The logits.
    pub logits: Logits,
    /// The hidden state behind the embeddings and behind each block; the last one is the one
    /// behind the final norm.
    pub hidden: bool,
    /// The last hidden state.
    pub last_hidden: bool,
}

/// Numbers in rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The numbers of a row.
    pub cols: usize,
    /// Row after row.
    pub numbers: Vec<f32>,
}

impl Rows {
    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.cols..(row + 1) * self.cols]
    }

    /// How many of the numbers are infinite or none at all.
    pub fn not_finite(&self) -> usize {
        self.numbers.iter().filter(|number| !number.is_finite()).count()
    }

    /// Refuses numbers that mean nothing: what is made of them would look like an answer.
    pub(crate) fn checked(self, what: &str) -> Result<Self, ModelError> {
        match self.not_finite() {
            0 => Ok(self),
            count => {
                let message = format!(
                    "{count} of {} numbers of the {what} are NaN or infinite: the weights are \
                     damaged, or their numbers are too large for this precision",
                    self.numbers.len()
                );
                let fault = Fault::new(FaultKind::Numeric, what.to_owned(), message);
                Err(ModelError::Fault(Box::new(fault)))
            }
        }
    }
}

/// What a pass gave. Rows are sequence after sequence, padding included.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Logits, if they were asked for.
    pub logits: Option<Rows>,
    /// Hidden states, if they were asked for.
    pub hidden: Vec<Rows>,
    /// The last hidden state, if it was asked for.
    pub last_hidden: Option<Rows>,
}

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
    tuning: Option<Tuning>,
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
        self.tuning = Some(tuning);
        self
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

    fn baseline(&self) -> u64 {
        self.baseline.unwrap_or_else(process::peak_bytes)
    }

    /// Loads what stays in memory by `plan`, which must be of this model.
    pub fn load(
        &self,
        plan: &Plan,
        device: &Device,
        meter: Arc<Meter>,
    ) -> Result<Model, ModelError> {
        let residency = &plan.residency;
        let Self { blueprint, binding, format, .. } = self.clone();
        let blocks = binding
            .blocks
            .iter()
            .enumerate()
            .map(|(number, bound)| BlockRunner::load(number, &blueprint, bound, device))
            .collect::<Result<_, _>>()?;
        let norm = |bound: &Option<_>| match bound {
            Some(bound) => Norm::load(blueprint.norm, bound, blueprint.eps, device).map(Some),
            None => Ok(None),
        };
        Ok(Model {
            embedding_norm: norm(&binding.embedding_norm)?,
            final_norm: norm(&binding.final_norm)?,
            store: Store::load(&binding.matrices, residency, device, format.compute, meter)?,
            blocks,
            device: device.clone(),
            cpu_fallback: None,
            tuning: self.tuning.as_ref().map(|tuning| tuning.on(device)),
            budgeted: plan.budget_bytes.is_some(),
            format: Format::new(device, format.compute),
            blueprint,
            binding,
        })
    }
}

/// A model that is ready to run.
pub struct Model {
    pub(crate) blueprint: Blueprint,
    pub(crate) binding: Binding,
    pub(crate) store: Store,
    embedding_norm: Option<Norm>,
    pub(crate) blocks: Vec<BlockRunner>,
    pub(crate) final_norm: Option<Norm>,
    pub(crate) device: Device,
    pub(crate) format: Format,
    cpu_fallback: Option<CpuFallback>,
    budgeted: bool,
    tuning: Option<Tuning>,
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
    /// alone.
    #[must_use]
    pub fn guarded(mut self, footing: Arc<Footing>, home: DeviceName) -> Self {
        let blocks = self.blocks.len();
        self.cpu_fallback =
            (home != DeviceName::CPU).then(|| CpuFallback::new(footing, home, blocks));
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

    /// Runs one batch behind what the cache holds.
    pub(crate) fn pass(
        &self,
        batch: &TokenBatch,
        want: Want,
        session: &mut Session<'_>,
        cache: Option<&mut Cache>,
    ) -> Result<Output, ModelError> {
        self.pass_observed(batch, want, session, cache, None)
    }

    /// [`Self::pass`], with someone who looks on.
    pub(crate) fn pass_observed(
        &self,
        batch: &TokenBatch,
        want: Want,
        session: &mut Session<'_>,
        mut cache: Option<&mut Cache>,
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<Output, ModelError> {
        session.begin_pass();
        let past = cache.as_ref().map_or(0, |cache| cache.past());
        self.check_positions(batch, past)?;
        let positions: Vec<usize> = batch
            .pads
            .iter()
            .flat_map(|&pad| (0..batch.width).map(move |at| (past + at).saturating_sub(pad)))
            .collect();
        let same = batch.pads.iter().all(|pad| *pad == batch.pads[0]);
        let on = |device: &Device| Pass {
            blueprint: &self.blueprint,
            rotation: self.blueprint.rope.as_ref().map(|rope| {
                let rows = if same { 1 } else { batch.len() };
                Rotation::new(rope, &positions[..rows * batch.width], rows, device)
            }),
            mask: AttentionMask {
                past,
                pads: &batch.pads,
                causal: self.blueprint.causal,
                segments: None,
                last: LastMask::default(),
            },
            batch: batch.len(),
            width: batch.width,
            tuning: self.tuning.as_ref(),
        };
        let pass = on(&self.device);
        let mut output = Output::default();
        let mut x = self.first_state(&batch.ids, &positions, self.tuning.as_ref())?;
        x = self.show(x, Boundary::Embeddings, &mut observer)?;
        for (number, block) in self.blocks.iter().enumerate() {
            if want.hidden {
                output.hidden.push(self.read(x.clone(), || format!("block {number}"))?);
            }
            x = match &self.cpu_fallback {
                None => block.run(x, &pass, session, cache.as_deref_mut())?,
                Some(fallback) => {
                    fallback.block(self, number, x, &pass, &on, session, cache.as_deref_mut())?
                }
            };
            x = self.format.between_blocks(x);
            x = self.show(x, Boundary::Block(number), &mut observer)?;
            self.store.meter.block();
            self.look_at_pool();
        }
        if let Some(cache) = cache {
            cache.filled += batch.width;
        }
        if want.logits == Logits::Last && !want.hidden && !want.last_hidden {
            let last: Vec<i64> =
                (1..=batch.len()).map(|end| (end * batch.width - 1) as i64).collect();
            let last: Tensor<1, Int> =
                Tensor::from_data(TensorData::new(last, [batch.len()]), &self.device);
            x = x.select(0, last);
        }
        if let Some(norm) = &self.final_norm {
            x = norm.apply(x, self.tuning.as_ref());
            x = self.show(x, Boundary::Norm, &mut observer)?;
        }
        if want.hidden || want.last_hidden {
            let last = self.read(x.clone(), || "the last block".to_owned())?;
            if want.hidden {
                output.hidden.push(last.clone());
            }
            output.last_hidden = want.last_hidden.then_some(last);
        }
        if want.logits != Logits::None {
            output.logits = Some(match &self.cpu_fallback {
                None => self.logits(x, session)?,
                Some(fallback) => {
                    let session = RefCell::new(session);
                    fallback.head(x, |x| self.logits(x, &mut session.borrow_mut()))?
                }
            });
        }
        self.store.meter.pass(batch.ids.len());
        Ok(output)
    }

    /// A budget is kept by plan and measured, so that it can be told whether it was.
    fn look_at_pool(&self) {
        if !self.budgeted || self.format.is_on_host() {
            return;
        }
        if let Some(usage) = self.device.memory_pool_usage() {
            self.store.meter.device_holds(usage.bytes_reserved);
        }
    }

    fn check_positions(&self, batch: &TokenBatch, past: usize) -> Result<(), ModelError> {
        let longest = batch
            .pads
            .iter()
            .map(|pad| (past + batch.width).saturating_sub(*pad))
            .max()
            .unwrap_or(0);
        let limit = self.blueprint.max_positions;
        if self.binding.positions.is_some() && longest > limit {
            return Err(ModelError::request(format!(
                "a sequence has {longest} tokens, the model has learned {limit} positions"
            )));
        }
        Ok(())
    }

    /// The first hidden state: rows of the tables, read from the files as they are needed.
    pub(crate) fn first_state(
        &self,
        ids: &[u32],
        positions: &[usize],
        tuning: Option<&Tuning>,
    ) -> Result<Tensor<2>, ModelError> {
        let hidden = self.blueprint.hidden;
        let mut numbers = vec![0.0_f32; ids.len() * hidden];
        // Tables that are trained are looked up as tensors, so that gradients reach them.
        let mut trained: Option<Tensor<2>> = None;
        let mut look_up = |table: &Stored, row_of: &dyn Fn(usize) -> usize| {
            let Some(tensor) = tuning.and_then(|tuning| tuning.matrix(&table.name)) else {
                return false;
            };
            let rows: Vec<i64> = (0..ids.len()).map(|at| row_of(at) as i64).collect();
            let rows: Tensor<1, Int> =
                Tensor::from_data(TensorData::new(rows, [ids.len()]), &self.device);
            let found = tensor.clone().select(0, rows);
            trained = Some(match trained.take() {
                Some(sum) => sum + found,
                None => found,
            });
            true
        };
        let add = |table: &Stored, target, row_of: &dyn Fn(usize) -> usize, numbers: &mut [f32]| {
            let format = table.format()?;
            for (at, sum) in numbers.chunks_exact_mut(hidden).enumerate() {
                convert::add_row(table, format, target, row_of(at), sum)?;
            }
            Ok::<_, ModelError>(())
        };
        type RowOf<'r> = &'r dyn Fn(usize) -> usize;
        let tables: [(Option<&Stored>, RowOf<'_>); 3] = [
            (Some(&self.binding.tokens), &|at| ids[at] as usize),
            (self.binding.positions.as_ref(), &|at| positions[at]),
            (self.binding.segments.as_ref(), &|_| 0),
        ];
        for (number, (table, row_of)) in tables.into_iter().enumerate() {
            if let Some(table) = table
                && !look_up(table, row_of)
            {
                let target =
                    if number == 0 { self.binding.tokens_target } else { table.format()? };
                add(table, target, row_of, &mut numbers)?;
            }
        }
        let factor = self.blueprint.scales.embedding as f32;
        if factor != 1.0 {
            numbers.iter_mut().for_each(|number| *number *= factor);
        }
        let x = Tensor::from_data(TensorData::new(numbers, [ids.len(), hidden]), &self.device);
        let x = match trained {
            Some(trained) => trained * f64::from(factor) + x,
            None => x,
        };
        Ok(match &self.embedding_norm {
            Some(norm) => norm.apply(x, tuning),
            None => x,
        })
    }

    fn logits(&self, x: Tensor<2>, session: &mut Session<'_>) -> Result<Rows, ModelError> {
        let head = self
            .binding
            .head
            .ok_or_else(|| ModelError::request("the model has no head, so there are no logits"))?;
        let [rows, _] = x.dims();
        let vocab = self.blueprint.vocab;
        let mut numbers = vec![0.0_f32; rows * vocab];
        if let Some(tuning) = self.tuning.as_ref().filter(|tuning| !tuning.is_empty()) {
            let y = session.apply_tuned(head, Some(tuning), x.transpose())?;
            let y = y.transpose() * self.blueprint.scales.logits;
            return self.read(y, || "the head".to_owned());
        }
        session.apply_parts(head, x.transpose(), |_, part, y| {
            let y = self.read(y, || "the head".to_owned())?;
            for (token, of_rows) in part.clone().zip(y.numbers.chunks_exact(rows)) {
                for (row, number) in of_rows.iter().enumerate() {
                    numbers[row * vocab + token] = *number;
                }
            }
            Ok(())
        })?;
        let factor = self.blueprint.scales.logits as f32;
        if factor != 1.0 {
            numbers.iter_mut().for_each(|number| *number *= factor);
        }
        Ok(Rows { cols: vocab, numbers })
    }

    pub(crate) fn read(&self, x: Tensor<2>, at: impl Fn() -> String) -> Result<Rows, ModelError> {
        Handle::current().check(Point::Read)?;
        let cols = x.dims()[1];
        let numbers = x.try_into_vec_as::<f32>().map_err(|error| from_error(&at(), error))?;
        Ok(Rows { cols, numbers })
    }
}
