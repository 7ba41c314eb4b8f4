//! Measures every device and precision on typical workloads, with confidence intervals, and says
//! which is fastest.
//!
//! A [`Workload`](workload::Workload) is one kind of work; a variant of it runs on one device in
//! one precision. Variants are measured in turns ([`measure`]), so that other load on the machine
//! affects all of them alike. On every device a sample ends when a value that depends on the work
//! was read, because GPUs work asynchronously. A [`BenchReport`] keeps the median of the samples with a
//! confidence interval; a difference within the noise is reported as too noisy ([`statistics`],
//! [`verdict`], [`compare`]).
//!
//! ```
//! use std::time::Duration;
//! use surefoot::device::{DeviceName, open};
//! use surefoot_bench::workload::Workload;
//! use surefoot_bench::{Settings, run};
//!
//! let mut settings = Settings::new(vec![open(DeviceName::CPU)?]).quick();
//! settings.workloads = vec![Workload::Attention];
//! settings.time_each = Duration::from_millis(20);
//! let report = run(&settings, &mut |_progress| {});
//! assert!(report.results[0].median_ns > 0.0);
//! println!("{}", report.summary);
//! # Ok::<(), surefoot::Fault>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]

pub mod compare;
pub mod machine;
pub mod measure;
mod peak;
mod report;
pub mod statistics;
pub mod verdict;
pub mod workload;

pub use measure::{Progress, Settings, run};
pub use report::{
    BenchReport, Interval, Measured, Peak, Ratio, Status, Throughput, Verdict, WarmUp,
};
