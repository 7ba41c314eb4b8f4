//! Generating text.

pub mod sample;
pub mod text;
pub mod tokens;
pub mod writer;
