//! Generating text: tokenizers, sampling, and decoding with a cache of keys and values.

mod gguf_tokenizer;
mod paged_tokens;
pub mod pages;
pub mod sample;
mod score;
pub mod session;
pub mod speculate;
pub mod text;
pub mod token_bytes;
pub mod tokens;
pub mod writer;
