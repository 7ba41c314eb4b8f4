//! Whole runs on the built-in digits: faults, resuming, precision, data.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod data;
mod faults;
mod harness;
mod moments;
mod precision;
mod resume;
mod staging;
