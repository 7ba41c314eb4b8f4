//! Runs published models, in less memory than they need.
//!
//! [`Opened`] is a model folder or GGUF file that was checked; a [`Plan`](stream::plan::Plan) says what of
//! it stays in memory and what is streamed; a [`runner::Runner`] runs it, guarded, on any device.
//!
//! ```
//! use std::path::Path;
//! use surefoot_models::stream::needs::Work;
//! use surefoot_models::{Logits, Opened, Want};
//!
//! # let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
//! let opened = Opened::new(&folder)?;
//! let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
//! let work = Work { batch: 1, prompt: 16, new_tokens: 0, want };
//! let plan = opened.plan(&work, Some(4 << 30));
//! assert!(plan.fits && plan.streamed_file_bytes == 0);
//! # Ok::<(), surefoot_models::ModelError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]
#![deny(unsafe_code)]

pub mod adapter;
pub mod arch;
pub mod chat;
pub mod classify;
pub mod embed;
mod error;
pub mod folder;
pub mod generate;
pub mod quantize;
pub mod random;
pub mod run;
pub mod runner;
pub mod save;
pub mod stream;
pub mod tune;
pub mod weights;

pub use error::ModelError;
pub use run::batch::{Rectangle, TokenBatch};
pub use run::model::Model;
pub use run::opened::Opened;
pub use run::output::{Logits, Output, Rows, StepOutput, Want};
