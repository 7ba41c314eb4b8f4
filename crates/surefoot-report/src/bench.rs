//! The HTML page of a benchmark.

use std::io::{self, Write};

use serde::Serialize;

use crate::page::{self, Connect, Kind};

/// A benchmark's report with a title.
#[derive(Clone, Debug, Serialize)]
pub struct BenchPage<R> {
    /// The title.
    pub title: String,
    /// The report, in the form that `surefoot bench --json` prints.
    pub report: R,
}

impl<R: Serialize> BenchPage<R> {
    /// Writes the page.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        page::write(out, Kind::Bench, Connect::Nowhere, &self.title, self)
    }
}
