//! Printing a report: for people, and in three forms for machines.

pub mod github;
pub mod json;
pub mod sarif;
pub mod text;

use ruff_text_size::TextRange;

use crate::source::{Source, SourcePosition};

/// Where a range begins and ends, as people count; the end is just past the last character.
fn extent(source: &Source, range: TextRange) -> (SourcePosition, SourcePosition) {
    (source.place(range.start()), source.place(range.end()))
}

/// `1 file`, `2 files`.
pub fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
