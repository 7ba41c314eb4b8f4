//! Pages a person can read.
