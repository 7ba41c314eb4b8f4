//! The matrices of a model at run time: those that stay, and those that pass through.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;

use super::feed::Feed;
use super::meter::Meter;
use super::plan::Residency;
use crate::arch::blueprint::Layout;
use crate::error::ModelError;
use crate::weights::binding::Matrix;
use crate::weights::piece::Piece;

/// A piece, and its tensor if it stays.
#[expect(clippy::large_enum_variant, reason = "a handful a matrix; a box would cost every product")]
enum Slot {
    Held(Tensor<2>),
    Passing,
}

struct Part {
    rows: Range<usize>,
    slot: Slot,
}

struct Kept {
    name: String,
    layout: Layout,
    parts: Vec<Part>,
}

/// All matrices, in the order in which a pass uses them.
pub(crate) struct Store {
    matrices: Vec<Kept>,
    /// The pieces that pass through, in the same order.
    passing: Arc<[Piece]>,
    window: u64,
    device: Device,
    pub(crate) meter: Arc<Meter>,
}

impl Store {
    /// Loads what stays.
    pub(crate) fn load(
        matrices: &[Matrix],
        residency: &Residency,
        device: &Device,
        meter: Arc<Meter>,
    ) -> Result<Self, ModelError> {
        let mut kept = Vec::with_capacity(matrices.len());
        let mut passing = Vec::new();
        for (number, (matrix, cuts)) in matrices.iter().zip(&residency.cuts).enumerate() {
            let mut parts = Vec::with_capacity(cuts.len());
            for cut in cuts {
                let piece = Piece::new(number, matrix, cut.rows.clone());
                let slot = if cut.resident {
                    let (tensor, cost) = piece.load(device, None)?;
                    meter.loaded(&piece, cost);
                    Slot::Held(tensor)
                } else {
                    passing.push(piece);
                    Slot::Passing
                };
                parts.push(Part { rows: cut.rows.clone(), slot });
            }
            let name = matrix.stored.name.clone();
            kept.push(Kept { name, layout: matrix.layout, parts });
        }
        Ok(Self {
            matrices: kept,
            passing: passing.into(),
            window: residency.window,
            device: device.clone(),
            meter,
        })
    }

    /// Opens the matrices for `passes` passes; what streams starts coming in.
    pub(crate) fn open(&self, passes: usize) -> Session<'_> {
        let feed = (!self.passing.is_empty()).then(|| {
            Feed::start(
                Arc::clone(&self.passing),
                passes,
                self.window,
                self.device.clone(),
                Arc::clone(&self.meter),
            )
        });
        Session { store: self, feed }
    }
}

/// The matrices during some passes. They must be applied in order.
pub(crate) struct Session<'a> {
    store: &'a Store,
    feed: Option<Feed>,
}

impl Session<'_> {
    /// `[inputs, columns]` → `[outputs, columns]`.
    pub(crate) fn apply(&mut self, matrix: usize, x: Tensor<2>) -> Result<Tensor<2>, ModelError> {
        let mut outputs = Vec::new();
        let mut sum: Option<Tensor<2>> = None;
        self.apply_parts(matrix, x, |layout, _, y| {
            match layout {
                Layout::OutIn => outputs.push(y),
                Layout::InOut => {
                    sum = Some(match sum.take() {
                        Some(sum) => sum + y,
                        None => y,
                    });
                }
            }
            Ok(())
        })?;
        match (sum, outputs.pop()) {
            (Some(sum), _) => Ok(sum),
            (None, Some(only)) if outputs.is_empty() => Ok(only),
            (None, Some(last)) => {
                outputs.push(last);
                Ok(Tensor::cat(outputs, 0))
            }
            (None, None) => Err(ModelError::request("the model has an empty matrix")),
        }
    }

    /// Gives the result of each part with the rows of the matrix that made it: to be put side
    /// by side, or summed where the rows are inputs.
    pub(crate) fn apply_parts(
        &mut self,
        matrix: usize,
        x: Tensor<2>,
        mut each: impl FnMut(Layout, &Range<usize>, Tensor<2>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let kept = &self.store.matrices[matrix];
        for part in &kept.parts {
            let weight = match (&part.slot, &mut self.feed) {
                (Slot::Held(tensor), _) => tensor.clone(),
                (Slot::Passing, Some(feed)) => feed.next(matrix, &part.rows)?,
                (Slot::Passing, None) => {
                    return Err(ModelError::request(format!("'{}' is not being fed", kept.name)));
                }
            };
            let y = match kept.layout {
                Layout::OutIn => product(weight, x.clone()),
                Layout::InOut => {
                    let x = x.clone().narrow(0, part.rows.start, part.rows.len());
                    weight.transpose().matmul(x)
                }
            };
            each(kept.layout, &part.rows, y)?;
        }
        Ok(())
    }
}

/// Below this a product is over before other threads have begun.
const WORTH_SPLITTING: usize = 1 << 18;

/// `[outputs, inputs]` × `[inputs, columns]`. Burn's CPU backend multiplies with a single column
/// on one thread, though that is most of decoding: the rows are shared out instead.
fn product(weight: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    let [rows, inputs] = weight.dims();
    let threads = rayon::current_num_threads();
    let alone = x.dims()[1] > 1 || rows * inputs < WORTH_SPLITTING || rows < threads;
    if alone || threads == 1 || weight.device() != Device::flex() {
        return weight.matmul(x);
    }
    let share = rows.div_ceil(threads);
    let parts: Vec<Tensor<2>> = (0..rows.div_ceil(share))
        .into_par_iter()
        .map(|part| {
            let from = part * share;
            weight.clone().narrow(0, from, share.min(rows - from)).matmul(x.clone())
        })
        .collect();
    Tensor::cat(parts, 0)
}
