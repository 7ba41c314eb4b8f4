//! Many callers, one device: each runs on a lane of its own, requests are stacked into batches,
//! sequences join and leave between tokens, and all of it is served over HTTP as OpenAI's
//! clients expect it.
//!
//! - [`lanes`]: streams leased to callers, as many as raise the throughput of this device.
//! - [`warm_up`]: what a model's first run of a shape needs, once and ahead of time.
//! - [`engine`]: batches of embeddings and of decoding, over a model that moves when a device
//!   fails.
//! - [`http`]: the server.
//! - [`structured`]: answers that keep to a JSON schema, a grammar, a regular expression or calls of tools.
//! - [`model_pool`]: several models within one budget, loaded when they are asked for.
//! - [`chat`]: messages to a prompt, by the template that a model brings.
//! - [`metrics`]: what is counted, for Prometheus and for the journal.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use burn::tensor::Tensor;
//! use surefoot::device::{DeviceName, open};
//! use surefoot_serve::lanes::Lanes;
//!
//! let lanes = Lanes::new(open(DeviceName::CPU)?, 4);
//! let sum = lanes.run(&"a sum", |device| {
//!     Ok::<_, Infallible>(Tensor::<1>::ones([8], device).sum().into_scalar::<f32>())
//! });
//! assert_eq!(sum, Ok(8.0));
//! # Ok::<(), surefoot::Fault>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]

pub mod engine;
pub mod http;
pub mod lanes;
pub mod metrics;
pub mod model_pool;
pub mod structured;
pub mod trace;
pub mod warm_up;

pub use surefoot_models::chat;
