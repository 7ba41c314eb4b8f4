//! Running a model in less memory than it needs: the plan, what stays, what streams.

pub(crate) mod feed;
pub mod meter;
pub mod needs;
pub mod plan;
pub mod process;
pub mod rate;
pub(crate) mod store;
