//! Builds without a GPU: nothing is ever packed.

use std::convert::Infallible;

use burn::tensor::Tensor;

use crate::update::AdamW;

/// Flat tensors in f32, one after another in one. This build has no device for which that is of use.
#[derive(Clone, Debug)]
pub struct Packed(Infallible);

impl Packed {
    /// None: this build has no device for which packing is of use.
    pub fn new(_tensors: &[Tensor<1>]) -> Option<Self> {
        None
    }

    /// The tensors.
    pub fn parts(&self) -> Vec<Tensor<1>> {
        match self.0 {}
    }

    /// The same tensors, of zeros.
    #[must_use]
    pub fn zeros(&self) -> Self {
        match self.0 {}
    }

    /// Whether the other has tensors of the same sizes on the same device.
    pub fn is_alike(&self, _other: &Self) -> bool {
        match self.0 {}
    }

    /// All of the tensors as one, with padding.
    pub fn whole(&self) -> Tensor<1> {
        match self.0 {}
    }

    /// The sum of all numbers, or of their squares.
    pub fn sum(&self, _squared: bool) -> Tensor<1> {
        match self.0 {}
    }
}

/// None: this build has no device for which packing is of use.
pub fn first_numbers(_tensors: &[Tensor<1>]) -> Option<Tensor<1>> {
    None
}

/// How gradients are clipped.
#[derive(Clone, Debug)]
pub struct Clip {
    /// The sum of the squares of all gradients.
    pub squares: Tensor<1>,
    /// Gradients together are made no longer than this.
    pub longest: f64,
}

/// The new values and moments of parameters that are packed alike.
pub fn adamw_packed(
    inputs: [&Packed; 4],
    _clip: Option<Clip>,
    _step: AdamW,
    _decaying: usize,
) -> [Packed; 3] {
    match inputs[0].0 {}
}
