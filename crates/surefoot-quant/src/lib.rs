//! Quantised weights without a tensor library.
//!
//! - [`block`]: the block formats of GGUF files, quantised from and dequantised to f32.
//! - [`gguf`]: a reader of GGUF files that refuses hostile ones.
//! - [`product`]: matrix products with packed weights on the processor.
//!
//! Invariants: no input makes any of it panic or read outside its slices. Lengths that do not fit
//! are typed errors. `unsafe` is confined to `product/dispatch.rs`, which calls kernels that need
//! instructions this processor has been found to have. The crate knows neither Burn nor models.

#![deny(unsafe_code)]

pub mod block;
pub mod gguf;
pub mod product;

pub use block::{BlockError, BlockFormat};
