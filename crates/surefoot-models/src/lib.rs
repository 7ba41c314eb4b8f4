//! surefoot-models
