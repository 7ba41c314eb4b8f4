//! Flex tensors as flat slices of numbers, and back.

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};

use surefoot_kernels::dense::View;
use surefoot_kernels::processor::has_vectors;

/// Whether the kernels here take it: numbers in f32, on a processor whose vector instructions
/// they know. Everything else is composed of Burn's own operations.
pub(crate) fn is_ours(tensor: &FlexTensor) -> bool {
    tensor.dtype() == DType::F32 && has_vectors()
}

/// Its numbers in order. The tensor must have gone through [`contiguous`].
pub(crate) fn numbers(tensor: &FlexTensor) -> &[f32] {
    match tensor.as_slice::<f32>() {
        Some(numbers) => numbers,
        None => panic!("{:?} is not a contiguous tensor of f32", tensor.dtype()),
    }
}

/// The tensor with its numbers side by side.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.layout().contiguous_offsets().is_some() { tensor } else { tensor.to_contiguous() }
}

/// The matrix with its rows or its columns side by side, as [`view`] takes it.
pub(crate) fn readable(tensor: FlexTensor) -> FlexTensor {
    match tensor.layout().strides() {
        [step, 1] | [1, step] if *step >= 0 => tensor,
        _ => tensor.to_contiguous(),
    }
}

/// A matrix that has gone through [`readable`], as it lies in memory.
pub(crate) fn view(tensor: &FlexTensor) -> View<'_> {
    let layout = tensor.layout();
    let numbers = &tensor.storage::<f32>()[layout.start_offset()..];
    match layout.strides() {
        [step, 1] => View::rows(numbers, step.unsigned_abs()),
        [1, step] => View::columns(numbers, step.unsigned_abs()),
        strides => panic!("a matrix with strides {strides:?} is not readable"),
    }
}

/// The tensor in memory that holds nothing else, to be changed in place where nobody shares it.
pub(crate) fn owned(tensor: FlexTensor) -> FlexTensor {
    let whole = tensor.layout().start_offset() == 0
        && tensor.is_contiguous()
        && tensor.bytes().len() == 4 * tensor.layout().num_elements();
    if whole { tensor } else { tensor.to_contiguous() }
}

/// A tensor of these numbers.
pub(crate) fn tensor<const D: usize>(numbers: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    shaped(numbers, Shape::from(shape))
}

/// A tensor of these numbers.
pub(crate) fn shaped(numbers: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(numbers), Layout::contiguous(shape), DType::F32)
}

/// Its dimensions.
pub(crate) fn dims<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    let shape = tensor.layout().shape();
    std::array::from_fn(|at| shape[at])
}
