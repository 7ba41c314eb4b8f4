//! `surefoot serve` as people and programs use it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../made/mod.rs"]
mod made;

mod access;
mod answers;
mod embeddings;
mod faults;
mod load;
mod refusals;
mod served;
