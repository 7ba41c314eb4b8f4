//! Measures every device and precision on real work, with its noise, and says what it means.
//!
//! A [`Workload`](workload::Workload) is one sort of work; a variant of it runs on one device in
//! one precision. Variants take turns ([`measure`]), so that a busy machine slows all of them
//! alike. A sample ends when a value that depends on the work was read, on every device: a GPU
//! works behind the caller's back, and what was not read was perhaps not done. Of the samples a
//! [`Report`] keeps the median with a confidence interval; what the noise doesn't let be told
//! is called too noisy ([`statistics`], [`verdict`], [`compare`]).

pub mod compare;
pub mod machine;
pub mod measure;
mod peak;
mod report;
pub mod statistics;
pub mod verdict;
pub mod workload;

pub use measure::{Progress, Settings, run};
pub use report::{Interval, Measured, Peak, Ratio, Report, Status, Throughput, Verdict, WarmUp};
