//! Measures every device and precision on real work.
