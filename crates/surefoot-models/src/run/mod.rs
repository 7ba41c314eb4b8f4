//! Running a model: one pass over a batch, block by block.

mod activation;
pub(crate) mod attention;
pub mod batch;
pub(crate) mod block;
pub(crate) mod cache;
pub(crate) mod cpu_fallback;
mod decode_block;
pub mod dropout;
mod experts;
pub mod model;
pub(crate) mod norm;
pub mod observe;
pub mod opened;
pub mod output;
pub(crate) mod paged;
pub(crate) mod part_devices;
pub(crate) mod pass;
pub(crate) mod recorded_step;
pub(crate) mod rotary;
pub mod sequences;
pub mod training;
pub mod tuning;
