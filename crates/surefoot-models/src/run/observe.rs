//! Looking at a pass while it runs: an observer is given the hidden state at every boundary, one
//! at a time, so that no pass has to keep them all. It may also change the state, to measure how a
//! model reacts to noise.

use burn::tensor::{Tensor, TensorData};

use super::batch::TokenBatch;
use super::model::Model;
use super::output::{Output, Rows, Want};
use crate::error::ModelError;

/// A boundary that a pass goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Boundary {
    /// Behind the embeddings.
    Embeddings,
    /// Behind the block of this number.
    Block(usize),
    /// Behind the final norm; only the last row of each sequence where only its logits are wanted.
    Norm,
}

/// How the pass goes on behind a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// With the state as it was.
    Same,
    /// With the state as the observer left it.
    Changed,
}

/// Is given the state at each boundary: rows of all sequences, padding included.
pub type Observer<'a> = dyn FnMut(Boundary, &mut Rows) -> Result<Onward, ModelError> + 'a;

impl Model {
    /// Runs one batch without a cache and shows the state at every boundary.
    pub fn forward_observed(
        &self,
        batch: &TokenBatch,
        want: Want,
        observer: &mut Observer<'_>,
    ) -> Result<Output, ModelError> {
        self.pass_observed(batch, want, &mut self.store.open(1), None, Some(observer))
    }

    pub(crate) fn show(
        &self,
        x: Tensor<2>,
        at: Boundary,
        observer: &mut Option<&mut Observer<'_>>,
    ) -> Result<Tensor<2>, ModelError> {
        let Some(observer) = observer else { return Ok(x) };
        let mut rows = self.read(x.clone(), || format!("{at:?}"))?;
        let (shape, device) = (x.dims(), x.device());
        match observer(at, &mut rows)? {
            Onward::Same => Ok(x),
            Onward::Changed => Ok(Tensor::from_data(TensorData::new(rows.numbers, shape), &device)),
        }
    }
}
