//! From tensors in files to tensors on a device.

pub mod binding;
pub(crate) mod convert;
pub(crate) mod gate;
pub(crate) mod piece;
