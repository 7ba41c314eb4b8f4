//! What an error message of a machine-learning program means: the kind of fault, the words that
//! decided, and what to change.
//!
//! This crate knows the fault kinds of `surefoot-core` and texts, nothing else: no tensors, no
//! recovery. Recovery of our own engines uses it only where an error comes as text alone.
//!
//! ```
//! use surefoot_core::fault::FaultKind;
//!
//! let found = surefoot_explain::explain("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)");
//! assert_eq!(found.kind, FaultKind::OutOfMemory);
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod answer;
mod explain;
mod facts;
mod frame;
pub mod guides;
pub mod learned;
mod log;
mod rules;

pub use answer::{Answer, answer, answer_of_kind};
pub use explain::{
    DecidedBy, Explanation, MAX_TEXT, SecondGuess, explain, explain_by_rules, explain_kind,
    kind_of_text,
};
pub use facts::Facts;
pub use frame::Frame;
pub use log::{LogAnswer, LogEvent, LogReader};
