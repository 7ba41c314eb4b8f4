//! The parsers of a model folder, without the rest of their crate: Burn under a sanitizer takes
//! many minutes to build, and none of it is needed here.

#![allow(dead_code, unreachable_pub, reason = "only the parsers are called")]

#[path = "../../crates/surefoot-models/src/arch/mod.rs"]
pub mod arch;
pub mod error;
#[path = "../../crates/surefoot-models/src/folder/mod.rs"]
pub mod folder;

/// Where the tensors of a file are, if its header is accepted.
pub fn ranges(file: &folder::mapped::WeightFile) -> Option<Vec<std::ops::Range<usize>>> {
    let entries = folder::header::read(file).ok()?;
    Some(entries.into_values().map(|entry| entry.range).collect())
}
