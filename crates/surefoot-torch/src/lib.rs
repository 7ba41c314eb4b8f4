//! Finds device trouble in PyTorch code before it happens.
//!
//! A file goes through here as follows: [`source`] reads it (a script, or a notebook's code cells
//! joined into one text), [`syntax`] parses it, `model` walks it once and writes down what it
//! does with tensors, models, optimizers, loaders and devices, and each of the [`rules`] reads that
//! and reports [`finding::Finding`]s. [`project`] does it for many files at once, [`fix`] applies the
//! safe repairs, [`report`] prints, [`plan`] tells a project's device story, and [`requirements`] looks
//! at the version of torch that it asks for.
//!
//! Nothing here runs Python or touches a device.
//!
//! ```
//! use surefoot_torch::check::check;
//! use surefoot_torch::rules;
//! use surefoot_torch::source::Source;
//!
//! let code = "import torch\nx = torch.ones(3).cuda()\n";
//! let source = Source::from_text("train.py".to_owned(), code.to_owned())?;
//! let rule = rules::find("SF006").expect("the rule exists");
//! let findings = check(&source, &[rule])?;
//! assert_eq!((findings.len(), findings[0].code), (1, "SF006"));
//! # Ok::<(), surefoot_torch::source::FileError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]

pub mod check;
pub mod discover;
mod encoding;
pub mod finding;
pub mod fix;
mod model;
mod noqa;
mod notebook;
pub mod plan;
pub mod project;
pub mod report;
pub mod requirements;
pub mod rules;
pub mod settings;
pub mod source;
pub mod syntax;
