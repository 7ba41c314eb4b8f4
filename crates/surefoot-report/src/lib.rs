//! HTML reports in one style for journals, training runs, benchmarks, model comparisons and load
//! tests, as single files that need no network; and a live page of a journal ([`live`]).
//!
//! A page is one HTML document: a template, a style sheet and plain scripts from `page/`, with the
//! data as JSON inside. Text from data is inserted only as text, never as markup, and the page's
//! content security policy forbids it to load anything.
//!
//! ```
//! use surefoot_core::journal::{Event, EventKind, Line};
//! use surefoot_report::JournalPage;
//!
//! let mut page = JournalPage::new("run.jsonl");
//! page.add(&Line::Event(Event::new(EventKind::Step, "forward").device("cpu")));
//! let mut html = Vec::new();
//! page.write(&mut html)?;
//! assert!(html.starts_with(b"<!doctype html>"));
//! # Ok::<(), std::io::Error>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod bench;
mod chunk;
mod evidence;
mod journal;
#[cfg(feature = "live")]
pub mod live;
mod load;
mod page;
mod training;

pub use bench::BenchPage;
pub use evidence::{Challenge, Evidence, Site, Verdict};
pub use journal::JournalPage;
pub use load::{LatencyBucket, LoadPhase, LoadTest};
pub use training::{ClassRow, Epoch, Point, Training};
