//! Generating text.

mod gguf_tokenizer;
pub mod prefill;
pub mod sample;
mod score;
pub mod session;
pub mod text;
pub mod token_bytes;
pub mod tokens;
pub mod writer;
