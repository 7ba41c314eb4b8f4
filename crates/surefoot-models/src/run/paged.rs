//! Keys and values in pages, as a pass over tokens of any sequences reads and writes them.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use burn::tensor::{Tensor, TensorData};
use surefoot::fault::from_error;
use surefoot_ops::{PAGE_TOKENS, PageLayout, PagedAttention, QueryRun};
use surefoot_quant::product::{ALIKE_COLUMNS, share_out};

use super::cache::{KeyValueStore, Queries};
use crate::error::ModelError;
use crate::generate::pages::pool::Page;

/// The tokens of one sequence in a pass. Its pages reach behind the last of them, and those that are written
/// belong to it alone.
#[derive(Clone)]
pub(crate) struct PagedRun {
    /// Their rows in the pass.
    pub(crate) rows: Range<usize>,
    /// The position of the first one.
    pub(crate) start: usize,
    pub(crate) pages: Vec<Arc<Page>>,
}

/// The sequences of a pass, whose tokens are one row.
pub(crate) struct PagedPass {
    pub(crate) layout: PageLayout,
    pub(crate) heads: usize,
    pub(crate) runs: Vec<PagedRun>,
}

impl PagedPass {
    /// Writes the keys and values of a block, `[kv_heads, rows, head_dim]` each.
    fn write(&mut self, block: usize, keys: &[f32], values: &[f32]) -> Result<(), ModelError> {
        let PageLayout { kv_heads, head_dim, .. } = self.layout;
        let rows = keys.len() / (kv_heads * head_dim).max(1);
        for run in &mut self.runs {
            for row in run.rows.clone() {
                let position = run.start + row - run.rows.start;
                let page = &mut run.pages[position / PAGE_TOKENS];
                let page = Arc::get_mut(page).ok_or_else(|| {
                    ModelError::request("a page that is shared was to be written: a defect")
                })?;
                for head in 0..kv_heads {
                    let from = (head * rows + row) * head_dim;
                    let of = from..from + head_dim;
                    let (keys, values) = (&keys[of.clone()], &values[of]);
                    let place = position % PAGE_TOKENS;
                    self.layout.write(page.numbers_mut(), block, head, place, keys, values);
                }
            }
        }
        Ok(())
    }
}

impl PagedPass {
    /// The attention of a few queries, shared out to the threads that wait awake for the next product. None where one thread is
    /// enough, or there are no such threads to be had.
    fn attend_between_products(
        &self,
        attention: PagedAttention,
        q: &Arc<Vec<f32>>,
        rows: usize,
    ) -> Option<Vec<f32>> {
        let runs = || self.runs.iter().map(|run| (run.rows.len(), run.start));
        if rows > ALIKE_COLUMNS || !attention.is_worth_splitting(runs()) {
            return None;
        }
        let kv_heads = self.layout.kv_heads;
        let results: Arc<Vec<OnceLock<Vec<f32>>>> =
            Arc::new((0..kv_heads).map(|_| OnceLock::new()).collect());
        // They are let go of before the call ends, so that the pages can be written again.
        let (runs, q, written) = (self.runs.clone(), Arc::clone(q), Arc::clone(&results));
        let done = share_out(kv_heads, move |head| {
            let numbers = attention.attend_heads(&q, &query_runs(&runs), head..head + 1);
            // Each part is done once.
            let _ = written[head].set(numbers);
        });
        if !done {
            return None;
        }
        let of_head = self.heads / kv_heads * self.layout.head_dim;
        let mut seen = Vec::with_capacity(rows * kv_heads * of_head);
        for row in 0..rows {
            for result in results.iter() {
                seen.extend_from_slice(&result.get()?[row * of_head..(row + 1) * of_head]);
            }
        }
        Some(seen)
    }
}

fn query_runs(runs: &[PagedRun]) -> Vec<QueryRun<'_>> {
    runs.iter()
        .map(|run| QueryRun {
            rows: run.rows.clone(),
            start: run.start,
            pages: run.pages.iter().map(|page| page.numbers()).collect(),
        })
        .collect()
}

impl KeyValueStore for PagedPass {
    fn attend(
        &mut self,
        block: usize,
        queries: Queries<'_>,
        k: Tensor<4>,
        v: Tensor<4>,
    ) -> Result<Tensor<4>, ModelError> {
        let Queries { q, scores, .. } = queries;
        let (device, dtype, [_, heads, rows, dim]) = (q.device(), q.dtype(), q.dims());
        let numbers = |tensor: Tensor<4>| {
            tensor.try_into_vec_as::<f32>().map_err(|error| from_error("attention", error))
        };
        self.write(block, &numbers(k)?, &numbers(v)?)?;
        let attention = PagedAttention {
            layout: self.layout,
            layer: block,
            heads: self.heads,
            scale: scores.scale as f32,
            cap: scores.cap.map(|cap| cap as f32),
            window: scores.window,
        };
        let q = Arc::new(numbers(q)?);
        let seen = match self.attend_between_products(attention, &q, rows) {
            Some(seen) => seen,
            None => attention.attend(&q, &query_runs(&self.runs)),
        };
        let seen = TensorData::new(seen, [1, rows, heads, dim]);
        Ok(Tensor::<4>::from_data(seen, &device).cast(dtype).swap_dims(1, 2))
    }

    /// A page that was written by half is written again.
    fn has(&self, _block: usize) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::super::attention::{AttentionMask, Scores};
    use super::*;
    use crate::generate::pages::pool::PagePool;

    /// A prompt, then passes of one and of eight tokens behind it, which are long enough to be shared out: the bits of the attention on
    /// one thread, and pages that can be written again afterwards.
    #[test]
    fn a_few_queries_get_the_same_bits_whoever_computes_them() {
        let layout = PageLayout { layers: 2, kv_heads: 4, head_dim: 64 };
        let (heads, device) = (16, Device::flex());
        let pool = PagePool::new(layout, 32);
        let pages: Vec<_> = (0..32).map(|_| pool.take().unwrap()).collect();
        let run = PagedRun { rows: 0..0, start: 0, pages };
        let mut pass = PagedPass { layout, heads, runs: vec![run] };
        let scores = || Scores { scale: 0.125, cap: None, window: None };
        let mask = AttentionMask {
            past: 0,
            pads: &[0],
            causal: true,
            segments: None,
            last: Default::default(),
            device_pads: Default::default(),
        };
        let mut start = 0;
        for rows in [200, 1, 8, 1, 1] {
            let numbers = |of: usize, seed: usize| -> Vec<f32> {
                let number = |at: usize| ((at * 37 + seed + start) % 101) as f32 / 50.0 - 1.0;
                (0..of * rows * 64).map(number).collect()
            };
            let tensor = |numbers: &[f32], of: usize| {
                let data = TensorData::new(numbers.to_vec(), [1, of, rows, 64]);
                Tensor::<4>::from_data(data, &device)
            };
            (pass.runs[0].rows, pass.runs[0].start) = (0..rows, start);
            let (q, k, v) = (numbers(heads, 1), numbers(4, 2), numbers(4, 3));
            let queries = Queries { q: tensor(&q, heads), scores: scores(), mask: &mask };
            let seen = pass.attend(1, queries, tensor(&k, 4), tensor(&v, 4)).unwrap();
            let attention =
                PagedAttention { layout, layer: 1, heads, scale: 0.125, cap: None, window: None };
            let expected = attention.attend_heads(&q, &query_runs(&pass.runs), 0..4);
            let seen = seen.swap_dims(1, 2).try_into_vec_as::<f32>().unwrap();
            assert_eq!(seen, expected, "{rows} rows behind {start}");
            start += rows;
        }
    }
}
