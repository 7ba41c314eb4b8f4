//! Leases, once-cells and a batching queue, free of any device so that they can be model-checked.
