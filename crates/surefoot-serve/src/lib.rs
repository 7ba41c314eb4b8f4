//! Many callers, one device.
