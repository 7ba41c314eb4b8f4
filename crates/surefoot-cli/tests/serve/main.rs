//! `surefoot serve` as people and programs use it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod access;
mod adapters;
mod answers;
mod embeddings;
mod encrypted_traces;
mod faults;
mod formats;
#[cfg(target_os = "linux")]
mod isolation;
mod load;
#[cfg(target_os = "linux")]
mod memory;
mod prefixes;
mod refusals;
#[cfg(unix)]
mod replicas;
mod scores;
mod served;
#[cfg(target_os = "linux")]
mod several;
mod speculation;
mod traces;
