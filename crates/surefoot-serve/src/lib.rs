//! Many callers, one device.

pub mod lanes;
pub mod warm_up;
