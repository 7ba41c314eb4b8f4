//! Operations of our own where Burn's are slow, each with its backward pass.
//!
//! Each file is one operation, in the same form: a function over [`Tensor`](burn::tensor::Tensor)s,
//! a trait that Burn routes by the tensor's backend, Burn's own operations composed as that
//! trait's default, and kernels of our own for f32: on the CPU, and for many of the operations on
//! devices of CubeCL. Other dtypes, other operations there, and CPUs without the vector instructions
//! that the kernels are written for run the composed form, so the operations work and mean the same everywhere.
//!
//! Each operation, forward and backward, is a point at which a drill can strike
//! ([`surefoot_core::recover::drill`]).
//!
//! What a sum is made of depends on the shapes alone, never on the number of threads: the same
//! inputs give the same bits.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use surefoot_ops::{gelu, layer_norm, linear};
//!
//! let device = Device::flex().autodiff();
//! let x = Tensor::<2>::ones([4, 3], &device);
//! let weight = Tensor::<2>::ones([3, 2], &device).require_grad();
//! let bias = Tensor::<1>::zeros([2], &device);
//! let (gamma, beta) = (Tensor::<1>::ones([2], &device), Tensor::<1>::zeros([2], &device));
//!
//! let y = layer_norm(gelu(linear(x, weight.clone(), bias, None)), gamma, beta, 1e-5);
//! assert_eq!(y.dims(), [4, 2]);
//! let gradients = y.sum().backward();
//! assert_eq!(weight.grad(&gradients).map(|gradient| gradient.dims()), Some([3, 2]));
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod attention;
mod buffer;
mod constant_product;
mod conv;
mod cross_entropy;
#[cfg(any(feature = "gpu", target_os = "macos"))]
mod cube;
mod dense;
mod embedding;
mod flat;
mod gelu;
mod group_norm;
mod half_linear;
mod inference;
mod launches;
mod layer_norm;
mod linear;
mod memory;
mod optional;
mod packed;
mod product;
mod shapes;
#[cfg(test)]
mod testing;
mod tf32;
mod update;

pub use attention::{causal_attention, half_causal_attention};
pub use buffer::{buffer_of, overwrite};
pub use constant_product::{ConstantMatrix, constant_product};
pub use conv::{conv2d, half_conv2d};
pub use cross_entropy::cross_entropy;
pub use embedding::embedding;
pub use gelu::{gelu, gelu_tanh};
pub use group_norm::{GroupNorm, group_norm};
pub use half_linear::half_linear;
pub use inference::{
    AppendedAttention, AppendedPromptTensors, AppendedPrompts, AppendedTensors, DecodeProducts,
    MOST_DECODED, MOST_QUERIES, PromptAttention, attend_to_all, first_largest, gated_silu,
    largest_of_rows, rms_norm, rotate,
};
pub use launches::{Launches, count_launches};
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use memory::keep_freed_memory;
pub use packed::{Clip, Packed, adamw_packed, first_numbers};
pub use product::{matmul, product};
pub use surefoot_kernels::paged_attention::{PAGE_TOKENS, PageLayout, PagedAttention, QueryRun};
pub use surefoot_kernels::product::ALIKE_COLUMNS;
pub use tf32::{allow_tf32, tf32_is_allowed};
pub use update::{AdamW, Sgd, adamw, sgd};
