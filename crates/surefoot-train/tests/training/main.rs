//! Whole runs on the built-in digits: faults, resuming, precision, data.

mod data;
mod faults;
mod harness;
mod precision;
mod resume;
