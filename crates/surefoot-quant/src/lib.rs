//! Quantised weights without a tensor library.
//!
//! - [`block`]: the block formats of GGUF files, quantised from and dequantised to f32.
//! - [`gguf`]: a reader of GGUF files that refuses hostile ones.
//! - [`processor`]: how far the processor's instructions may be used.
//! - [`product`]: matrix products with packed weights on the processor.
//!
//! Invariants: no input makes any of it panic or read outside its slices. Lengths that do not fit
//! are typed errors. `unsafe` is confined to `product/dispatch.rs`, which calls kernels that need
//! instructions this processor has been found to have. The crate knows neither Burn nor models.
//!
//! ```
//! use surefoot_quant::BlockFormat;
//! use surefoot_quant::product::PackedRows;
//!
//! // Two rows of 32 weights in 4 bits each, times one column of 32 activations.
//! let weights: Vec<f32> = (0..64).map(|at| if at < 32 { 1.0 } else { -0.5 }).collect();
//! let format = BlockFormat::Q4_0;
//! let mut packed = vec![0; format.bytes_of(weights.len())?];
//! format.quantize(&weights, &mut packed)?;
//! assert_eq!(packed.len(), 2 * 18);
//!
//! let mut products = [0.0; 2];
//! PackedRows::new(format, 2, 32, &packed)?.times(&[1.0; 32], 1, &mut products)?;
//! assert!((products[0] - 32.0).abs() < 0.5 && (products[1] + 16.0).abs() < 0.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]
#![deny(unsafe_code)]

pub mod block;
pub mod gguf;
pub mod processor;
pub mod product;

pub use block::{BlockError, BlockFormat};
