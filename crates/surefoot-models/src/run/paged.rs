//! Keys and values in pages, as a pass over tokens of any sequences reads and writes them.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};
use surefoot::fault::from_error;
use surefoot_ops::{PAGE_TOKENS, PageLayout, PagedAttention, QueryRun};

use super::cache::{KeyValueStore, Queries};
use crate::error::ModelError;
use crate::generate::pages::pool::Page;

/// The tokens of one sequence in a pass. Its pages reach behind the last of them, and those that are written
/// belong to it alone.
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
        let runs: Vec<QueryRun<'_>> = self
            .runs
            .iter()
            .map(|run| QueryRun {
                rows: run.rows.clone(),
                start: run.start,
                pages: run.pages.iter().map(|page| page.numbers()).collect(),
            })
            .collect();
        let attention = PagedAttention {
            layout: self.layout,
            layer: block,
            heads: self.heads,
            scale: scores.scale as f32,
            cap: scores.cap.map(|cap| cap as f32),
            window: scores.window,
        };
        let seen = attention.attend(&numbers(q)?, &runs);
        let seen = TensorData::new(seen, [1, rows, heads, dim]);
        Ok(Tensor::<4>::from_data(seen, &device).cast(dtype).swap_dims(1, 2))
    }

    /// A page that was written by half is written again.
    fn has(&self, _block: usize) -> bool {
        true
    }
}
