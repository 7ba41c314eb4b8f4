//! Is this the same model?
