//! Training that survives running out of memory, losing a device and being killed: data sources, the
//! training loop, mixed precision, checkpoints.
//!
//! A [`Config`] says what to do; [`data::open`] gives the samples; [`Run::train`] takes any
//! Burn module that is [`Trainable`] from its first weights to the last step:
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use surefoot::Footing;
//! use surefoot_train::{Config, Run, checkpoint::CheckpointFolder, data, model::Mlp};
//!
//! let text = "{data: {kind: digits}, model: {kind: mlp}, epochs: 5}";
//! let config = Config::parse(text, &[])?;
//! let data = data::open(&config.data, config.seed)?;
//! let footing = Footing::builder().build()?;
//! let folder = tempfile::tempdir()?;
//! let run = Run {
//!     footing: &footing,
//!     config: &config,
//!     flags: Vec::new(),
//!     data: &data,
//!     checkpoints: CheckpointFolder::new(folder.path(), 2)?,
//!     stop: &AtomicBool::new(false),
//!     earlier_faults: Vec::new(),
//!     ranks: None,
//! };
//! let model = Mlp::new(64, &[32], 10, config.seed, footing.device()?.burn());
//! let report = run.train(model, None, |_news| {})?;
//! assert!(report.test_accuracy > 0.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]

pub mod batch;
pub mod checkpoint;
pub mod config;
pub mod curves;
pub mod data;
pub mod estimate;
pub mod evaluate;
pub mod export;
pub mod fit;
pub mod loader;
pub mod model;
pub mod optimizer;
pub mod parameters;
pub mod plan;
pub mod predict;
pub mod ranks;
pub mod report;
mod run;
pub mod scale;
pub mod stage;
pub mod state;
pub mod step;
pub mod tensorboard;

pub use config::{Config, ConfigError};
pub use model::{Score, Trainable};
pub use report::{TrainEvent, TrainReport};
pub use run::{Run, TrainError};
pub use surefoot_models::random;
