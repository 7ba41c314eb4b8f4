//! One pass of a batch through a model: rows of the embedding tables, block after block, the final
//! norm, the head. With a cache, the batch continues the sequences whose keys and values it holds.

use std::cell::RefCell;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use surefoot::fault::from_error;
use surefoot::recover::Point;
use surefoot::recover::drill::Handle;

use super::attention::{AttentionMask, LastMask};
use super::batch::TokenBatch;
use super::block::Pass;
use super::cache::Cache;
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
        session.begin_pass();
        let past = cache.as_ref().map_or(0, |cache| cache.past());
        self.check_positions(batch, past)?;
        let positions: Vec<usize> = batch
            .pads
            .iter()
            .flat_map(|&pad| (0..batch.width).map(move |at| (past + at).saturating_sub(pad)))
            .collect();
        let rows = batch.len();
        let tuning = self.tuning_of_rows(session.adapters(), rows, batch.width)?;
        let tuning = tuning.as_deref();
        let same = batch.pads.iter().all(|pad| *pad == batch.pads[0]);
        let rotation = |rope: &Rope, device: &Device| {
            let rows = if same { 1 } else { batch.len() };
            Rotation::new(rope, &positions[..rows * batch.width], rows, device)
        };
        let on = |device: &Device| Pass {
            blueprint: &self.blueprint,
            rotation: self.blueprint.rope.as_ref().map(|rope| rotation(rope, device)),
            local_rotation: self.blueprint.local_rope.as_ref().map(|rope| rotation(rope, device)),
            mask: AttentionMask {
                past,
                pads: &batch.pads,
                causal: self.blueprint.causal,
                segments: None,
                last: LastMask::default(),
            },
            batch: batch.len(),
            width: batch.width,
            tuning,
        };
        let pass = on(&self.device);
        let mut output = Output::default();
        let mut x = self.first_state(&batch.ids, &positions, tuning)?;
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
            x = norm.apply(x, tuning);
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
                None => self.logits(x, rows, session)?,
                Some(fallback) => {
                    let session = RefCell::new(session);
                    fallback.head(x, |x| self.logits(x, rows, &mut session.borrow_mut()))?
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
        let first_position = self.blueprint.embeddings.first_position;
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
            (self.binding.positions.as_ref(), &|at| first_position + positions[at]),
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
        if let Some(cap) = self.blueprint.scales.logit_cap {
            let cap = cap as f32;
            numbers.iter_mut().for_each(|number| *number = cap * (*number / cap).tanh());
        }
        Ok(Rows { cols: vocab, numbers })
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
