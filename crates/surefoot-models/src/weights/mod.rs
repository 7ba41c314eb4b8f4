//! Weights: from tensors in files to tensors on a device, in the format that products take.

mod bf16_rounded;
pub mod binding;
pub mod choice;
pub(crate) mod constant_piece;
pub(crate) mod convert;
pub(crate) mod device_blocks;
pub mod format;
pub(crate) mod gate;
pub(crate) mod half_rows;
pub(crate) mod packed_weight;
pub(crate) mod piece;
pub(crate) mod plain_rows;
pub(crate) mod quantize;
pub(crate) mod shared_product;
pub(crate) mod weight;
