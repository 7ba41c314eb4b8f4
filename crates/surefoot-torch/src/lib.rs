//! Finds device trouble in PyTorch code before it happens.
//!
//! A file goes through here as follows: [`source`] reads it (a script, or a notebook's code cells
//! joined into one text), [`syntax`] parses it, `model` walks it once and writes down what it
//! does with tensors, models, optimizers, loaders and devices, and each of the [`rules`] reads that
//!
//! Nothing here runs Python or touches a device.

pub mod check;
pub mod finding;
mod model;
mod noqa;
mod notebook;
pub mod rules;
pub mod source;
pub mod syntax;
