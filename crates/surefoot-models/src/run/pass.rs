//! One pass of a batch through a model: rows of the embedding tables, block after block, the final
//! norm, the head. With a cache, the batch continues the sequences whose keys and values it holds.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;
use surefoot::fault::from_error;
use surefoot::recover::Point;
use surefoot::recover::drill::Handle;

use super::attention::{AttentionMask, LastMask};
use super::batch::TokenBatch;
use super::block::Pass;
use super::cache::{Cache, Store as KeyValues};
use super::model::Model;
use super::observe::{Boundary, Observer};
use super::output::{Logits, Output, Rows, Want};
use super::rotary::Rotation;
use super::tuning::Tuning;
use crate::arch::rope::Rope;
use crate::error::ModelError;
use crate::folder::checkpoint::Stored;
use crate::stream::store::Session;
use crate::weights::convert;

/// The rows of tokens that go through the model in one pass: `width` of each sequence of a batch; or tokens of
/// any sequences as one row, if the store of keys and values knows whose they are.
pub(crate) struct PassRows<'a> {
    pub(crate) ids: &'a [u32],
    /// The segment of each token, for models that tell two texts apart by them; empty if all are in the first.
    pub(crate) token_types: &'a [u8],
    /// The position of each token in its sequence.
    pub(crate) positions: &'a [usize],
    /// Whether all sequences of the batch have the same positions.
    pub(crate) rotated_alike: bool,
    /// Positions at the start of each sequence that are padding.
    pub(crate) pads: &'a [usize],
    /// Positions that a cache of the batch holds already.
    pub(crate) past: usize,
    /// Whether the tokens are of any sequences: then each is a row of its own for adapters.
    pub(crate) is_mixed: bool,
    pub(crate) width: usize,
    /// The rows that are wanted behind the last block, if not all.
    pub(crate) wanted: Option<Vec<usize>>,
}

/// The row of a table that each token takes.
type RowOf<'r> = &'r (dyn Fn(usize) -> usize + Sync);

/// Tokens whose rows of a table are worth reading on several threads.
const WORTH_THREADS: usize = 32;

impl Model {
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

    /// [`Self::pass`], with an observer that is shown the hidden state at every boundary.
    pub(crate) fn pass_observed(
        &self,
        batch: &TokenBatch,
        want: Want,
        session: &mut Session<'_>,
        mut cache: Option<&mut Cache>,
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<Output, ModelError> {
        let past = cache.as_ref().map_or(0, |cache| cache.past());
        let positions = batch.positions(past);
        let same = batch.pads.iter().all(|pad| *pad == batch.pads[0]);
        let only_last = want.logits == Logits::Last && !want.hidden && !want.last_hidden;
        let rows = PassRows {
            ids: &batch.ids,
            token_types: &[],
            positions: &positions,
            rotated_alike: same,
            pads: &batch.pads,
            past,
            is_mixed: false,
            width: batch.width,
            wanted: only_last.then(|| (1..=batch.len()).map(|end| end * batch.width - 1).collect()),
        };
        let known = cache.as_deref_mut().map(|cache| cache as &mut KeyValues);
        let output = self.pass_rows(&rows, want, session, known, &mut observer)?;
        if let Some(cache) = cache {
            cache.filled += batch.width;
        }
        Ok(output)
    }

    /// Runs rows of tokens behind what a store of keys and values holds.
    pub(crate) fn pass_rows(
        &self,
        rows: &PassRows<'_>,
        want: Want,
        session: &mut Session<'_>,
        mut cache: Option<&mut KeyValues>,
        observer: &mut Option<&mut Observer<'_>>,
    ) -> Result<Output, ModelError> {
        session.begin_pass();
        self.check_positions(rows.positions)?;
        let (tuned, columns) = match rows.is_mixed {
            true => (rows.ids.len(), 1),
            false => (rows.pads.len(), rows.width),
        };
        let tuning = self.tuning_of_rows(session.adapters(), tuned, columns)?;
        let tuning = tuning.as_deref();
        let rotation = |rope: &Rope, device: &Device| {
            let count = if rows.rotated_alike { 1 } else { rows.pads.len() };
            Rotation::new(rope, &rows.positions[..count * rows.width], count, device)
        };
        let on = |device: &Device| Pass {
            blueprint: &self.blueprint,
            rotation: self.blueprint.rope.as_ref().map(|rope| rotation(rope, device)),
            local_rotation: self.blueprint.local_rope.as_ref().map(|rope| rotation(rope, device)),
            mask: AttentionMask {
                past: rows.past,
                pads: rows.pads,
                causal: self.blueprint.causal,
                segments: None,
                last: LastMask::default(),
                device_pads: OnceCell::new(),
            },
            batch: rows.pads.len(),
            width: rows.width,
            tuning,
            places: OnceCell::new(),
        };
        let mut pass = on(&self.device);
        let mut output = Output::default();
        let mut x = self.first_state(rows.ids, rows.positions, rows.token_types, tuning)?;
        x = self.show(x, Boundary::Embeddings, observer)?;
        for (number, block) in self.blocks.iter().enumerate() {
            if want.hidden {
                let before = number.saturating_sub(1);
                let read = || self.read(x.clone(), || format!("block {number}"));
                output.hidden.push(self.parts.attributed(before, "reading a state", read)?);
            }
            if x.device() != *self.parts.of(number) {
                x = self.parts.cross(x, number.saturating_sub(1), number)?;
                pass = on(self.parts.of(number));
            }
            x = match &self.cpu_fallback {
                None => block.run(x, &pass, session, cache.as_deref_mut())?,
                Some(fallback) => {
                    fallback.block(self, number, x, &pass, &on, session, cache.as_deref_mut())?
                }
            };
            x = self.format.between_blocks(x);
            x = self.parts.attributed(number, "reading a state", || {
                self.show(x, Boundary::Block(number), observer)
            })?;
            self.store.meter.block();
            self.look_at_pool();
        }
        let blocks = self.blocks.len();
        x = self.parts.cross(x, blocks.saturating_sub(1), blocks)?;
        if let Some(wanted) = &rows.wanted
            && !wanted.is_empty()
            && !wanted.iter().copied().eq(0..x.dims()[0])
        {
            let wanted: Vec<i64> = wanted.iter().map(|row| *row as i64).collect();
            let count = wanted.len();
            let wanted: Tensor<1, Int> =
                Tensor::from_data(TensorData::new(wanted, [count]), self.parts.head());
            x = x.select(0, wanted);
        }
        if let Some(norm) = &self.final_norm {
            x = norm.apply(x, tuning);
            x = self.show(x, Boundary::Norm, observer)?;
        }
        if want.hidden || want.last_hidden {
            let read = || self.read(x.clone(), || "the last block".to_owned());
            let last = self.parts.attributed(blocks, "reading a state", read)?;
            if want.hidden {
                output.hidden.push(last.clone());
            }
            output.last_hidden = want.last_hidden.then_some(last);
        }
        if want.logits != Logits::None {
            let mut count = rows.pads.len();
            if rows.is_mixed
                && let Some(wanted) = &rows.wanted
            {
                let adapters = session.adapters();
                let of_wanted = wanted.iter().map(|row| adapters.get(*row).copied().flatten());
                let of_wanted = of_wanted.collect();
                session.set_adapters(of_wanted);
                count = wanted.len();
            }
            output.logits = Some(match &self.cpu_fallback {
                None => self.logits(x, count, session)?,
                Some(fallback) => {
                    let session = RefCell::new(session);
                    fallback.head(x, |x| self.logits(x, count, &mut session.borrow_mut()))?
                }
            });
        }
        self.store.meter.pass(rows.ids.len());
        Ok(output)
    }

    /// A budget is kept by plan and measured, so that it can be told whether it was.
    pub(super) fn look_at_pool(&self) {
        if !self.budgeted {
            return;
        }
        let mut last: Option<&Device> = None;
        for device in self.parts.all() {
            if last != Some(device)
                && let Some(usage) = device.memory_pool_usage()
            {
                self.store.meter.device_holds(usage.bytes_reserved);
            }
            last = Some(device);
        }
    }

    pub(super) fn check_positions(&self, positions: &[usize]) -> Result<(), ModelError> {
        let longest = positions.iter().max().map_or(0, |last| last + 1);
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
        token_types: &[u8],
        tuning: Option<&Tuning>,
    ) -> Result<Tensor<2>, ModelError> {
        // Tables that are trained are looked up as tensors, so that gradients reach them.
        let mut trained: Option<Tensor<2>> = None;
        let mut look_up = |table: &Stored, row_of: RowOf<'_>| {
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
        let numbers = self.rows_of_tables(ids, positions, token_types, &mut look_up)?;
        let shape = [ids.len(), self.blueprint.hidden];
        let x = Tensor::from_data(TensorData::new(numbers, shape), &self.device);
        let x = match trained {
            Some(trained) => trained * self.blueprint.scales.embedding + x,
            None => x,
        };
        Ok(match &self.embedding_norm {
            Some(norm) => norm.apply(x, tuning),
            None => x,
        })
    }

    /// The rows of the embedding tables, added up, read from the files as they are needed. `skip` is shown each table with the row of each
    /// token; what it takes is left out.
    pub(super) fn rows_of_tables(
        &self,
        ids: &[u32],
        positions: &[usize],
        token_types: &[u8],
        skip: &mut dyn FnMut(&Stored, RowOf<'_>) -> bool,
    ) -> Result<Vec<f32>, ModelError> {
        let hidden = self.blueprint.hidden;
        let first_position = self.blueprint.embeddings.first_position;
        let mut numbers = vec![0.0_f32; ids.len() * hidden];
        let add = |table: &Stored, target, row_of: RowOf<'_>, numbers: &mut [f32]| {
            let format = table.format()?;
            let row = |(at, sum): (usize, &mut [f32])| {
                convert::add_row(table, format, target, row_of(at), sum)
            };
            match ids.len() < WORTH_THREADS {
                true => numbers.chunks_exact_mut(hidden).enumerate().try_for_each(row),
                false => numbers.par_chunks_exact_mut(hidden).enumerate().try_for_each(row),
            }
        };
        let tables: [(Option<&Stored>, RowOf<'_>); 3] = [
            (Some(&self.binding.tokens), &|at| ids[at] as usize),
            (self.binding.positions.as_ref(), &|at| first_position + positions[at]),
            (self.binding.segments.as_ref(), &|at| {
                token_types.get(at).copied().map_or(0, usize::from)
            }),
        ];
        for (number, (table, row_of)) in tables.into_iter().enumerate() {
            if let Some(table) = table
                && !skip(table, row_of)
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
        Ok(numbers)
    }

    /// What a pass over `rows` of `width` columns is tuned by, if the first of them run with these adapters.
    fn tuning_of_rows(
        &self,
        adapters: &[Option<usize>],
        rows: usize,
        width: usize,
    ) -> Result<Option<Arc<Tuning>>, ModelError> {
        let adapters = &adapters[..adapters.len().min(rows)];
        let Some(&first) = adapters.iter().find(|adapter| adapter.is_some()) else {
            return Ok(self.tuning.clone());
        };
        if let Some(number) = adapters.iter().flatten().find(|at| **at >= self.adapters.len()) {
            return Err(ModelError::request(format!(
                "there is no adapter {number}: {} were loaded",
                self.adapters.len()
            )));
        }
        if adapters.iter().all(|adapter| *adapter == first) {
            return Ok(first.map(|number| Arc::clone(&self.adapters[number])));
        }
        let mixed = Tuning::by_rows(&self.adapters, adapters, width, &self.device);
        Ok(Some(Arc::new(mixed)))
    }

    /// The logits behind hidden states, as many of each of `batch` sequences.
    fn logits(
        &self,
        x: Tensor<2>,
        batch: usize,
        session: &mut Session<'_>,
    ) -> Result<Rows, ModelError> {
        let head = self
            .binding
            .head
            .ok_or_else(|| ModelError::request("the model has no head, so there are no logits"))?;
        let [rows, _] = x.dims();
        let vocab = self.blueprint.vocab;
        let mut numbers = vec![0.0_f32; rows * vocab];
        let tuning = self.tuning_of_rows(session.adapters(), batch, rows / batch.max(1))?;
        if let Some(tuning) = tuning.filter(|tuning| !tuning.is_empty()) {
            let y = session.apply_tuned(head, Some(&tuning), x.transpose())?;
            let y = self.scaled_logits(y.transpose());
            return self.read(y, || "the head".to_owned());
        }
        session.apply_parts(head, x.transpose(), |_, part, y| {
            let y = self.read(y.transpose(), || "the head".to_owned())?;
            for (row, of_row) in y.numbers.chunks_exact(part.len().max(1)).enumerate() {
                numbers[row * vocab + part.start..row * vocab + part.end].copy_from_slice(of_row);
            }
            Ok(())
        })?;
        self.scale_logits(&mut numbers);
        Ok(Rows { cols: vocab, numbers })
    }

    /// Applies the factor and the cap of the family to what the head gave.
    pub(super) fn scale_logits(&self, numbers: &mut [f32]) {
        let factor = self.blueprint.scales.logits as f32;
        if factor != 1.0 {
            numbers.iter_mut().for_each(|number| *number *= factor);
        }
        if let Some(cap) = self.blueprint.scales.logit_cap {
            let cap = cap as f32;
            numbers.iter_mut().for_each(|number| *number = cap * (*number / cap).tanh());
        }
    }

    /// Logits with the factor and the cap of the family.
    pub(crate) fn scaled_logits(&self, y: Tensor<2>) -> Tensor<2> {
        let scales = &self.blueprint.scales;
        let y = if scales.logits == 1.0 { y } else { y * scales.logits };
        match scales.logit_cap {
            Some(cap) => (y / cap).tanh() * cap,
            None => y,
        }
    }

    pub(crate) fn read(&self, x: Tensor<2>, at: impl Fn() -> String) -> Result<Rows, ModelError> {
        Handle::current().check(Point::Read)?;
        let cols = x.dims()[1];
        let numbers = x.try_into_vec_as::<f32>().map_err(|error| from_error(&at(), error))?;
        Ok(Rows { cols, numbers })
    }
}
