//! Runs published models, in less memory than they need.

#![deny(unsafe_code)]

pub mod arch;
mod error;
pub mod folder;
pub mod generate;
pub mod run;
pub mod stream;
pub mod weights;

pub use error::ModelError;
pub use run::batch::Batch;
pub use run::model::{Logits, Model, Opened, Output, Rows, Want};
