//! surefoot-torch
