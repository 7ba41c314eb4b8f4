//! Decoding steps whose launches are recorded once and repeated for each token: the host then asks for one launch where it described a
//! hundred, and the device no longer waits for it.
//!
//! [`StepRecorder`] belongs to the sequences of one cache and watches their steps. When [`SETTLED`] steps had the same [`Form`] it records the next one, and repeats
//! that until the form is another. It gives nothing, and the caller runs the step block by block, while it watches; on devices that cannot
//! record; and for models, blocks and tunings that [`BlockRunner::decode`](super::block::BlockRunner) has no kernels for.
//!
//! What differs from token to token is in buffers of its own, which are written anew before each repetition ([`StepInputs`]). A repetition
//! reads and writes the very buffers of the recording. This file has the `unsafe` call that allows it, and holds what it needs:
//! - *Inputs and logits* belong to the recording, and hold on to the *weights*; norms and biases belong to the model, which is
//!   borrowed while a repetition begins and known by its number ([`Form::model`]).
//! - *Keys and values* belong to the cache, which is borrowed too. Their buffers are compared before each repetition ([`Form::buffers`]), since a cache
//!   that grows gets others.
//! - *Intermediate results* are in memory that the recording itself keeps from being used otherwise.
//! - Everything is on one stream: it is part of the form. What is done with these buffers later is on it too, and so behind the repetition.
//! - A repetition may outlive the borrows: reading its logits waits for it, but may be refused before it waits, by a drill or a fault. Until it
//!   has ended nobody else is given memory that it uses, whoever lets go of it. CubeCL guards every page that the recorded launches were
//!   given, of whatever they read or write, as long as the recording lives; and when that is destroyed, the device first ends what is running of it
//!   (CUDA waits for the stream, wgpu submits what is left of it before anything else can be).
//!
//! The guarded pages are also why a recording must not be kept for no use: the memory of a cache that grows, or of a model that is
//! loaded anew, is free only when the recording is gone. So a session drops it before it makes another cache ([`StepRecorder::forget`]), and a
//! model takes the recordings of its steps along ([`Recordings`]).
//!
//! A recording also finds the most likely token of each sequence ([`surefoot_ops::largest_of_rows`]): a step that is asked for no more reads that
//! and leaves the logits on the device, unless a number among them is not finite.
//!
//! A drill strikes before a repetition, at the points and parts of its blocks. As with a real fault the step is not done then.

use std::cell::OnceCell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use burn::backend::{Backend, BackendGraph, Dispatch};
use burn::tensor::{Device, StreamId, Tensor, TensorData};
use surefoot::fault::from_error;
use surefoot::recover::Point;
use surefoot::recover::drill::point;
use surefoot_ops::{DecodeProducts, buffer_of, first_largest, largest_of_rows, overwrite};

use super::attention::{AttentionMask, LastMask};
use super::batch::TokenBatch;
use super::block::{Pass, column_numbers};
use super::cache::Cache;
use super::decode_block::Tokens;
use super::model::Model;
use super::norm::Norm;
use super::output::{Rows, StepOutput};
use super::rotary::{Rotation, table_numbers};
use crate::arch::rope::Rope;
use crate::error::ModelError;
use crate::generate::tokens::WANT;
use crate::stream::store::Session;
use crate::weights::format::is_host;

/// Steps of one form after which it is worth recording: that costs about as much as two steps.
const SETTLED: usize = 3;

/// What has to be the same for a recording to stand for a step.
#[derive(Debug, PartialEq)]
struct Form {
    model: u64,
    stream: StreamId,
    rows: usize,
    /// Whether sequences begin in different columns.
    padded: bool,
    /// The buffers of all keys and values.
    buffers: Vec<usize>,
}

impl Form {
    /// The form of a step. None if it can't be recorded.
    fn of(model: &Model, session: &Session<'_>, batch: &TokenBatch, cache: &Cache) -> Option<Self> {
        let moved = model.cpu_fallback.as_ref().is_some_and(|fallback| !fallback.is_idle());
        let plain = batch.width == 1
            && !is_host(&model.device)
            && model.parts.names().is_none()
            && !moved
            && model.tuning.is_none()
            && session.adapters().iter().all(Option::is_none);
        if !plain {
            return None;
        }
        let both = |layer: &Option<(Tensor<4>, Tensor<4>)>| {
            let (keys, values) = layer.as_ref()?;
            let has_room = cache.filled < keys.dims()[2];
            if has_room { Some([buffer_of(keys)?, buffer_of(values)?]) } else { None }
        };
        let buffers = cache.layers.iter().map(both).collect::<Option<Vec<_>>>()?.concat();
        let padded = batch.pads.iter().any(|pad| *pad > 0);
        Some(Self {
            model: model.number,
            stream: StreamId::current(),
            rows: batch.len(),
            padded,
            buffers,
        })
    }
}

/// The numbers of a step that differ from token to token.
struct StepNumbers {
    embeddings: Vec<f32>,
    rotation: Option<(Vec<f32>, Vec<f32>)>,
    local_rotation: Option<(Vec<f32>, Vec<f32>)>,
    places: Vec<f32>,
}

impl StepNumbers {
    fn new(
        model: &Model,
        batch: &TokenBatch,
        cache: &Cache,
        padded: bool,
    ) -> Result<Self, ModelError> {
        let positions = batch.positions(cache.past());
        model.check_positions(&positions)?;
        // Sequences that begin in the same column have the same positions.
        let turned = &positions[..if padded { batch.len() } else { 1 }];
        let table = |rope: &Option<Rope>| rope.as_ref().map(|rope| table_numbers(rope, turned));
        Ok(Self {
            embeddings: model.rows_of_tables(&batch.ids, &positions, &[], &mut |_, _| false)?,
            rotation: table(&model.blueprint.rope),
            local_rotation: table(&model.blueprint.local_rope),
            places: column_numbers(cache.start, cache.filled, &batch.pads),
        })
    }
}

/// The buffers of [`StepNumbers`] on the device.
struct StepInputs {
    embeddings: Tensor<1>,
    rotation: Option<(Tensor<1>, Tensor<1>)>,
    local_rotation: Option<(Tensor<1>, Tensor<1>)>,
    places: Tensor<1>,
}

impl StepInputs {
    fn new(numbers: StepNumbers, device: &Device) -> Self {
        let tensor = |numbers: Vec<f32>| {
            let count = numbers.len();
            Tensor::from_data(TensorData::new(numbers, [count]), device)
        };
        let both = |tables: Option<(Vec<f32>, Vec<f32>)>| {
            tables.map(|(cos, sin)| (tensor(cos), tensor(sin)))
        };
        Self {
            embeddings: tensor(numbers.embeddings),
            rotation: both(numbers.rotation),
            local_rotation: both(numbers.local_rotation),
            places: tensor(numbers.places),
        }
    }

    /// Puts the numbers of another step into the same buffers.
    fn overwrite(&self, numbers: StepNumbers) -> bool {
        let both = |tensors: &Option<(Tensor<1>, Tensor<1>)>, numbers| match (tensors, numbers) {
            (Some((cos, sin)), Some((of_cos, of_sin))) => {
                overwrite(cos, of_cos) && overwrite(sin, of_sin)
            }
            (None, None) => true,
            _ => false,
        };
        overwrite(&self.embeddings, numbers.embeddings)
            && both(&self.rotation, numbers.rotation)
            && both(&self.local_rotation, numbers.local_rotation)
            && overwrite(&self.places, numbers.places)
    }
}

/// A step that was recorded.
struct RecordedStep {
    /// Destroyed before what it reads and writes is let go of.
    graph: BackendGraph<Dispatch>,
    form: Form,
    inputs: StepInputs,
    /// `[rows, vocabulary]`, written by each repetition.
    logits: Tensor<2>,
    /// The largest of them, where the most likely token follows from it.
    largest: Option<Tensor<2>>,
    /// Held so that their buffers stay.
    _weights: Vec<Tensor<2>>,
}

/// The place of a recorder's recording.
type Slot = Mutex<Option<Box<RecordedStep>>>;

fn lock(slot: &Slot) -> MutexGuard<'_, Option<Box<RecordedStep>>> {
    // What a panic leaves behind is whole: a recording is put in and taken out, never changed.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The recordings of a model's steps, which end with it: they hold its weights, and the next model may not fit beside these.
#[derive(Default)]
pub(super) struct Recordings(Mutex<Vec<Weak<Slot>>>);

impl Recordings {
    fn add(&self, slot: &Arc<Slot>) {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Arc::downgrade(slot);
        slots.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&new));
        slots.push(new);
    }
}

impl Drop for Recordings {
    fn drop(&mut self) {
        let slots = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter().filter_map(Weak::upgrade) {
            *lock(&slot) = None;
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct StepRecorder {
    seen: Option<Form>,
    count: usize,
    recorded: Arc<Slot>,
    /// Whether recording was tried in vain.
    off: bool,
}

impl std::fmt::Debug for StepRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, recorded, off, .. } = self;
        let recorded = lock(recorded).is_some();
        f.debug_struct("StepRecorder")
            .field("count", count)
            .field("recorded", &recorded)
            .field("off", off)
            .finish()
    }
}

impl StepRecorder {
    /// Drops the recording, and with it the memory that it keeps from being used otherwise.
    pub(crate) fn forget(&mut self) {
        *lock(&self.recorded) = None;
        (self.seen, self.count) = (None, 0);
    }

    /// Makes room for passes over prompts, behind which there are so many sequences: drops a recording that has fewer rows, since it is of no more
    /// use, and any where memory is budgeted.
    pub(crate) fn make_way(&mut self, model: &Model, sequences: usize) {
        let is_outgrown = self.seen.as_ref().is_some_and(|form| form.rows < sequences);
        if model.budgeted || is_outgrown {
            self.forget();
        }
    }

    /// The logits behind one token of each sequence, whose keys and values are in the cache then, in its next column. None if the step has to be run block by
    /// block. After an error the cache must not be used any more.
    fn step(
        &mut self,
        model: &Model,
        session: &mut Session<'_>,
        batch: &TokenBatch,
        cache: &mut Cache,
        greedy: bool,
    ) -> Result<Option<StepOutput>, ModelError> {
        if self.off || model.records_no_steps() || !is_wanted() {
            return Ok(None);
        }
        let Some(form) = Form::of(model, session, batch, cache) else {
            *self = Self::default();
            return Ok(None);
        };
        let mut kept = lock(&self.recorded);
        if let Some(recorded) = kept.as_ref().filter(|recorded| recorded.form == form) {
            return recorded.repeat(model, batch, cache, greedy).map(Some);
        }
        *kept = None;
        if self.seen.as_ref() != Some(&form) {
            (self.seen, self.count) = (Some(form), 1);
            return Ok(None);
        }
        self.count += 1;
        if self.count <= SETTLED {
            return Ok(None);
        }
        let recorded = record(model, session, batch, cache, form)?;
        self.off = recorded.is_none();
        Ok(recorded.map(|(step, rows)| {
            *kept = Some(Box::new(step));
            model.recordings.add(&self.recorded);
            StepOutput::Logits(rows)
        }))
    }
}

impl Model {
    /// The logits behind one token of each sequence, or where `greedy` its most likely token, by a recording or block by block. After an
    /// error the cache must not be used any more.
    pub(crate) fn decode_step(
        &self,
        recorder: &mut StepRecorder,
        batch: &TokenBatch,
        session: &mut Session<'_>,
        cache: &mut Cache,
        greedy: bool,
    ) -> Result<StepOutput, ModelError> {
        if let Some(output) = recorder.step(self, session, batch, cache, greedy)? {
            cache.filled += 1;
            return Ok(output);
        }
        let output = self.pass(batch, WANT, session, Some(cache))?;
        let logits = output.logits.ok_or_else(|| ModelError::request("the pass gave no logits"))?;
        Ok(StepOutput::Logits(logits))
    }
}

/// Whether steps may be recorded: `SUREFOOT_RECORD=0` in the environment says no, to compare or to look for a fault.
fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os("SUREFOOT_RECORD").is_none_or(|value| value != "0"))
}

impl RecordedStep {
    fn repeat(
        &self,
        model: &Model,
        batch: &TokenBatch,
        cache: &Cache,
        greedy: bool,
    ) -> Result<StepOutput, ModelError> {
        for number in 0..model.blocks.len() {
            let points = || {
                point(Point::Operation);
                point(Point::Allocation);
                Ok(())
            };
            match &model.cpu_fallback {
                Some(fallback) => fallback.strike(number, points)?,
                None => points()?,
            }
        }
        let numbers = StepNumbers::new(model, batch, cache, self.form.padded)?;
        if !self.inputs.overwrite(numbers) {
            let what = "the inputs of a recorded decoding step have other sizes than its buffers";
            return Err(ModelError::Fault(from_error("decoding", what).into()));
        }
        // SAFETY: every buffer that the recording touches is alive now, and until the repetition has ended its memory is given to nobody else
        // and is used on this stream alone: see the top of this file, point by point. `self.form` was compared with the form of this
        // step just before.
        #[allow(unsafe_code)]
        let replayed = unsafe { Dispatch::graph_replay(model.device.as_dispatch(), &self.graph) };
        replayed.map_err(|error| from_error("decoding", error))?;
        if greedy && let Some(tokens) = self.most_likely(model)? {
            count(model, batch.len());
            return Ok(StepOutput::MostLikely(tokens));
        }
        read(model, self.logits.clone(), batch.len()).map(StepOutput::Logits)
    }

    /// The most likely token of each sequence. None if it does not follow from what the device has found.
    fn most_likely(&self, model: &Model) -> Result<Option<Vec<u32>>, ModelError> {
        let Some(largest) = &self.largest else { return Ok(None) };
        let parts = model.read(largest.clone(), || "the head".to_owned())?;
        let vocabulary = self.logits.dims()[1];
        let token = |row: &[f32]| first_largest(row).filter(|id| (*id as usize) < vocabulary);
        Ok(parts.numbers.chunks_exact(parts.cols.max(1)).map(token).collect())
    }
}

/// A stream that records, until it is told to stop or this is dropped: one that went on recording would run nothing any more.
struct Window<'d> {
    device: &'d Device,
    open: bool,
}

impl<'d> Window<'d> {
    /// None if the device cannot record.
    fn prepare(device: &'d Device) -> Option<Self> {
        Dispatch::graph_prepare(device.as_dispatch()).ok()?;
        Some(Self { device, open: true })
    }

    fn start(&self) -> bool {
        Dispatch::graph_start_capture(self.device.as_dispatch()).is_ok()
    }

    fn stop(mut self) -> Result<BackendGraph<Dispatch>, ModelError> {
        self.open = false;
        let stopped = Dispatch::graph_stop_capture(self.device.as_dispatch());
        stopped.map_err(|error| from_error("recording a decoding step", error).into())
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if self.open {
            // What was recorded is not wanted, and an error of stopping shows in the next work.
            drop(Dispatch::graph_stop_capture(self.device.as_dispatch()));
        }
    }
}

/// Runs a step, records it, and gives its logits. None if it can't be recorded, with nothing done.
fn record(
    model: &Model,
    session: &mut Session<'_>,
    batch: &TokenBatch,
    cache: &mut Cache,
    form: Form,
) -> Result<Option<(RecordedStep, Rows)>, ModelError> {
    let Some(weights) = session.all_resident(&model.device) else { return Ok(None) };
    let inputs =
        StepInputs::new(StepNumbers::new(model, batch, cache, form.padded)?, &model.device);
    let Some(window) = Window::prepare(&model.device) else { return Ok(None) };
    let Some(logits) = run(model, session, batch, cache, &inputs) else { return Ok(None) };
    // The recording launches nothing that has not run before, and asks for no memory that was not there: neither may be had while it is made.
    drop(largest(model, &logits));
    // Its memory is free again before the recording asks for as much.
    let rows = read(model, logits, batch.len())?;
    if !window.start() {
        return Ok(None);
    }
    let logits = run(model, session, batch, cache, &inputs);
    let largest = logits.as_ref().and_then(|logits| largest(model, logits));
    // If the recording is refused, the keys and values that it would have written can't be read any more: the caller gives up
    // the cache with this error, and no other step of this model is recorded.
    let graph = window.stop().inspect_err(|_| model.record_no_steps())?;
    let Some(logits) = logits else { return Ok(None) };
    let recorded = RecordedStep { graph, form, inputs, logits, largest, _weights: weights };
    Ok(Some((recorded, rows)))
}

/// The logits of a step whose inputs are on the device, read from nowhere else. None where a block or the head has no kernels for it.
fn run(
    model: &Model,
    session: &Session<'_>,
    batch: &TokenBatch,
    cache: &mut Cache,
    inputs: &StepInputs,
) -> Option<Tensor<2>> {
    let blueprint = &model.blueprint;
    let rotation = |rope: &Option<Rope>, tables: &Option<(Tensor<1>, Tensor<1>)>| {
        let (rope, (cos, sin)) = rope.as_ref().zip(tables.as_ref())?;
        Some(Rotation::of_tables(rope, cos.clone(), sin.clone()))
    };
    let pass = Pass {
        blueprint,
        rotation: rotation(&blueprint.rope, &inputs.rotation),
        local_rotation: rotation(&blueprint.local_rope, &inputs.local_rotation),
        mask: AttentionMask {
            past: cache.past(),
            pads: &batch.pads,
            causal: blueprint.causal,
            segments: None,
            last: LastMask::default(),
            device_pads: OnceCell::new(),
        },
        batch: batch.len(),
        width: 1,
        tuning: None,
        places: OnceCell::from(inputs.places.clone()),
    };
    let mut x = inputs.embeddings.clone().reshape([batch.len(), blueprint.hidden]);
    if let Some(norm) = &model.embedding_norm {
        x = norm.apply(x, None);
    }
    let final_norm = model.final_norm.as_ref();
    let mut tokens = Tokens::plain(x);
    for (number, block) in model.blocks.iter().enumerate() {
        let next = model.blocks.get(number + 1).map(|block| block.attention_norm.as_ref());
        // A state that is rounded between blocks has another norm.
        let next = next.unwrap_or(final_norm).and_then(Norm::plain_rms);
        let next = next.filter(|_| !model.format.rounds_between_blocks());
        tokens = block.decode_tokens(&tokens, &pass, session, cache, next)?;
        if model.format.rounds_between_blocks() {
            tokens = Tokens::plain(model.format.between_blocks(tokens.x));
        }
    }
    let head = session.resident(model.binding.head?, &model.device)?;
    let tokens = match final_norm {
        Some(norm) if norm.plain_rms().is_none() => Tokens::plain(norm.apply(tokens.x, None)),
        _ => tokens,
    };
    let (norm, normed) = tokens.before(Some(&head), final_norm.and_then(Norm::plain_rms));
    let head = DecodeProducts { norm, weights: vec![&head], ..DecodeProducts::default() };
    head.of(normed)
}

/// The largest logits, as [`Model::scale_logits`] scales them. None where it also caps them: numbers that differ may then become equal.
fn largest(model: &Model, logits: &Tensor<2>) -> Option<Tensor<2>> {
    let scales = &model.blueprint.scales;
    if scales.logit_cap.is_some() {
        return None;
    }
    largest_of_rows(logits, scales.logits)
}

/// Reads the logits, which waits for the device, and counts the step.
fn read(model: &Model, logits: Tensor<2>, rows: usize) -> Result<Rows, ModelError> {
    let mut logits = model.read(logits, || "the head".to_owned())?;
    model.scale_logits(&mut logits.numbers);
    count(model, rows);
    Ok(logits)
}

/// Counts a step.
fn count(model: &Model, rows: usize) {
    for _ in &model.blocks {
        model.store.meter.block();
    }
    model.store.meter.pass(rows);
    model.look_at_pool();
}
