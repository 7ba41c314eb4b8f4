//! Whole runs on the built-in digits, and of fine-tuning: faults, resuming, precision, data.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod data;
mod faults;
mod fine_tuning;
mod harness;
mod moments;
mod precision;
mod ranks;
mod resume;
mod staging;
