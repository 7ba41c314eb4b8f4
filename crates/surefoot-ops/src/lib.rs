//! Operations of our own where Burn's are slow.
