//! Where tensors and modules belong and in what dtype: one rule, applied before a guarded run.
//!
//! Burn computes wrong numbers without an error when f32 and f16 meet on wgpu, when a dtype is
//! used that the device only stores, when an index is out of bounds, and when a slice is. The
//! checks here refuse or repair each of these before the device sees it.

mod autocast;
mod bounds;
mod dtype;
mod ensure;
mod limits;
mod precision;
mod slot;

pub use autocast::Autocast;
pub use bounds::{check_ids, check_range, check_tensor_ids};
pub use dtype::{Dtype, DtypeSupport, dtype_of, float_dtype, probe_dtype};
pub use ensure::{Place, Spot, Target, ValueName, Weights, consistent, ensure, target};
pub(crate) use ensure::{does_not_compute, for_tensor};
pub use limits::{Limits, check_limits};
pub(crate) use precision::settle;
pub use slot::Slot;
pub use surefoot_core::precision::{Precision, Resolved};
