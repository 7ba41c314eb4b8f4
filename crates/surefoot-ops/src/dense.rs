//! Products of tensors on the CPU by the kernel for matrices of which neither is small.

use burn_flex::FlexTensor;
use surefoot_kernels::dense::{Sizes, multiply};

use crate::flat;

/// `left · right` of tensors in f32 with two dimensions, of which each may be turned. `finish` is that of [`multiply`].
pub(crate) fn product(
    left: FlexTensor,
    right: FlexTensor,
    finish: impl Fn(usize, &mut [f32]) + Sync,
) -> FlexTensor {
    let (left, right) = (flat::readable(left), flat::readable(right));
    let ([rows, depth], [_, columns]) = (flat::dims(&left), flat::dims(&right));
    let mut out = vec![0.0; rows * columns];
    let sizes = Sizes { rows, depth, columns };
    multiply(sizes, flat::view(&left), flat::view(&right), &mut out, finish);
    flat::tensor(out, [rows, columns])
}
