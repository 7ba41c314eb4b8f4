//! Many callers, one device: each runs on a lane of its own, requests are stacked into batches,
//! sequences join and leave between tokens, and all of it is served over HTTP as OpenAI's
//! clients expect it.
//!
//! - [`lanes`]: streams leased to callers, as many as pay on this device.
//! - [`warm_up`]: what a model's first run of a shape needs, once and ahead of time.
//! - [`engine`]: batches of embeddings and of decoding, over a model that moves when a device
//!   fails.
//! - [`http`]: the server.
//! - [`chat`]: messages to a prompt, by the template that a model brings.
//! - [`metrics`]: what is counted, for Prometheus and for the journal.

pub mod engine;
pub mod http;
pub mod lanes;
pub mod metrics;
pub mod warm_up;

pub use surefoot_models::chat;
