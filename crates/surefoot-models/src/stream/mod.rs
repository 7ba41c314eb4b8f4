//! Running a model in less memory than it needs: the plan, the weights that stay in memory, and those that are streamed.

pub mod choices;
pub mod device_map;
pub(crate) mod expert_cache;
pub mod limits;
pub mod meter;
pub mod needs;
pub mod plan;
pub(crate) mod prefetch;
pub mod process;
pub mod rate;
pub(crate) mod store;
