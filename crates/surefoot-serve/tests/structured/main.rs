//! Structured output: texts of random tokens, so that nothing but the constraint makes them valid.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod notations;
mod random_text;
mod schemas;
mod suite;
mod tool_calls;
