//! Kernels in f32 for CPUs with vector instructions (AVX-512, AVX2 with FMA, NEON), over slices of numbers.
//!
//! There are no tensors here and there is no `unsafe`: [`pulp`] calls the code that is compiled for the processor's instructions. Tensors,
//! gradients through autodiff and what is done without vector instructions are `surefoot-ops`'s, which calls these kernels.
//!
//! - Callers ask [`processor::has_vectors`] once. Where it says no, all kernels but those of [`math`] and [`paged_attention`] stop the
//!   program.
//! - Lengths of slices must be those that the sizes say. Shapes are checked where tensors are.
//! - What a sum is made of depends on the sizes and the processor alone, never on the number of threads: the same inputs give the same bits.

#![cfg_attr(not(test), warn(clippy::expect_used))]

pub mod attention;
pub mod conv;
pub mod dense;
pub mod gelu;
pub mod math;
pub mod paged_attention;
pub mod processor;
pub mod product;

/// Below so many multiplications a product is over before other threads have begun.
const WORTH_SPLITTING: usize = 1 << 20;
