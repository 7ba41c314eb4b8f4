//! A piece of a matrix in products whose gradients are wanted: the matrix itself is never trained.
//!
//! Rows that stay in memory are shared. Rows that stream are read from their file for the forward product, let go, and
//! read again for the backward one, so a model that does not fit can still pass gradients.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use surefoot::fault::raise;
use surefoot::recover::drill::Handle;
use surefoot::{Fault, FaultKind};
use surefoot_ops::{ConstantMatrix, constant_product};

use super::piece::Piece;
use super::weight::Weight;
use crate::arch::blueprint::Layout;
use crate::error::ModelError;
use crate::folder::header::WeightDtype;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one for each product, behind an Arc")]
enum Rows {
    Resident(Weight),
    Streamed(Piece, WeightDtype),
}

/// Rows of a matrix on the CPU.
#[derive(Debug)]
pub(crate) struct ConstantPiece {
    rows: Rows,
    layout: Layout,
}

impl ConstantPiece {
    pub(crate) fn resident(weight: Weight, layout: Layout) -> Self {
        Self { rows: Rows::Resident(weight), layout }
    }

    pub(crate) fn streamed(piece: Piece, compute: WeightDtype, layout: Layout) -> Self {
        Self { rows: Rows::Streamed(piece, compute), layout }
    }

    /// See [`Weight::times`].
    pub(crate) fn product(self, x: Tensor<2>) -> Tensor<2> {
        constant_product(Arc::new(self), x)
    }

    fn times(&self, layout: Layout, x: Tensor<2>) -> Tensor<2> {
        match &self.rows {
            Rows::Resident(weight) => weight.times(layout, x),
            Rows::Streamed(piece, compute) => {
                match piece.load(&Device::flex(), *compute, None, &Handle::current()) {
                    Ok((loaded, _)) => loaded.weight.times(layout, x),
                    Err(error) => raise(fault(error)),
                }
            }
        }
    }
}

fn fault(error: ModelError) -> Fault {
    match error {
        ModelError::Fault(fault) => *fault,
        other => Fault::new(FaultKind::ModelLoading, "read weights", other.to_string()),
    }
}

impl ConstantMatrix for ConstantPiece {
    fn times(&self, x: Tensor<2>) -> Tensor<2> {
        self.times(self.layout, x)
    }

    fn transposed_times(&self, y: Tensor<2>) -> Tensor<2> {
        // A matrix whose rows are outputs is transposed when its rows are taken as inputs.
        let turned = match self.layout {
            Layout::OutIn => Layout::InOut,
            Layout::InOut => Layout::OutIn,
        };
        self.times(turned, y)
    }
}
