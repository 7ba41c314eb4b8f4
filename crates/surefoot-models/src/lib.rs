//! Runs published models, in less memory than they need.

#![deny(unsafe_code)]

pub mod adapter;
pub mod arch;
pub mod chat;
pub mod embed;
mod error;
pub mod folder;
pub mod generate;
pub mod quantize;
pub mod run;
pub mod runner;
pub mod save;
pub mod stream;
pub mod weights;

pub use error::ModelError;
pub use run::batch::{Rectangle, TokenBatch};
pub use run::model::{Logits, Model, Opened, Output, Rows, Want};
