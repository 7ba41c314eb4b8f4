//! Quantised weights without a tensor library.
//!
//! - [`block`]: the block formats of GGUF files, quantised from and dequantised to f32.
//! - [`gguf`]: a reader of GGUF files that refuses hostile ones.
//!
//! Invariants: no input makes any of it panic or read outside its slices. Lengths that do not fit
//! are typed errors. The crate knows neither Burn nor models.

pub mod block;
pub mod gguf;

pub use block::{BlockError, BlockFormat};
