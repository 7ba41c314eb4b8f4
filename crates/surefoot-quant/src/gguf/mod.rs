//! GGUF files: metadata, and tensors in the formats of [`block`](crate::block).
//!
//! A file is a header (metadata, then the names, shapes, formats and offsets of the tensors) and the
//! tensors' bytes. The header is read once, in order and within [`MAX_HEADER`]; what it says is
//! believed only as far as the file's size allows, so memory stays within a small multiple of the
//! bytes that were read. What is accepted has these properties:
//!
//! - every tensor lies within the file, is aligned, and shares no byte with another;
//! - its rows are whole blocks of a known format, and its size in bytes doesn't overflow;
//! - names and keys are unique UTF-8 text.
//!
//! Weights are not read here: a [`Tensor`] says where its bytes are.

mod error;
mod header;
mod reader;
mod split;
mod tensor;
mod value;

pub use error::GgufError;
pub use header::Gguf;
pub use split::{GgufFiles, Part};
pub use tensor::Tensor;
pub use value::{Array, Value};

/// The bytes of the largest header that is read: tokenizers of a million tokens take less than a tenth.
pub const MAX_HEADER: u64 = 256 << 20;
/// As many metadata keys are read.
pub const MAX_KEYS: u64 = 1 << 16;
/// As many tensors are read.
pub const MAX_TENSORS: u64 = 1 << 20;
/// As many dimensions a tensor may have.
pub const MAX_DIMENSIONS: u32 = 4;
/// The largest alignment.
pub const MAX_ALIGNMENT: u64 = 1 << 20;
/// The bytes of the longest key.
pub(crate) const MAX_KEY: u64 = 65_535;
/// The bytes of the longest tensor name.
pub(crate) const MAX_NAME: u64 = 64;
/// As deep arrays may be nested.
pub(crate) const MAX_DEPTH: usize = 4;
