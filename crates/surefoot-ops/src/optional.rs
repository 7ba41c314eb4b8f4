//! A tensor that may be left out, in the form that Burn's extensions route.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType};
use burn::tensor::Tensor;

/// A tensor, or none.
#[derive(ExtensionType)]
pub(crate) enum Optional<B: Backend> {
    /// There is one.
    Given(FloatTensor<B>),
    /// There is none.
    Absent,
}

impl<B: Backend> Optional<B> {
    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Given(tensor) => Some(tensor),
            Self::Absent => None,
        }
    }
}

pub(crate) fn optional<const D: usize>(tensor: Option<Tensor<D>>) -> Optional<Dispatch> {
    match tensor {
        Some(tensor) => Optional::Given(tensor.into_dispatch()),
        None => Optional::Absent,
    }
}
