//! Surefoot for Burn: run work on whatever devices a machine has, and recover when one fails.
//!
//! Build a [`Footing`] once; run work through it. A fault is caught, classified, answered by
//! the next rung of a ladder that the [`Policy`](recover::Policy) allows, and reported.
//!
//! ```
//! use burn::tensor::{Distribution, Tensor};
//! use surefoot::prelude::*;
//!
//! let footing = Footing::builder().build()?;
//! let product = footing.run("product", |step| {
//!     let a = Tensor::<2>::random([64, 64], Distribution::Default, step.device());
//!     Ok(a.clone().matmul(a))
//! })?;
//! assert_eq!(product.value.dims(), [64, 64]);
//! assert!(product.faults.is_empty(), "nothing had to be recovered");
//! # Ok::<(), surefoot::Fault>(())
//! ```
//!
//! A batch that may not fit is split if it has to be; the parts' results are concatenated:
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use surefoot::prelude::*;
//!
//! let footing = Footing::builder().build()?;
//! let model = LinearConfig::new(64, 10).init(&Device::flex());
//! let batch = Tensor::<2>::random([256, 64], Distribution::Default, &Device::flex());
//! let logits = footing
//!     .task("forward")
//!     .split(batch)
//!     .with(Weights(model))
//!     .run(|_step, model, batch| Ok(model.forward(batch)))?
//!     .value;
//! assert_eq!(logits.dims(), [256, 10]);
//! # Ok::<(), surefoot::Fault>(())
//! ```
//!
//! This crate is Burn's side of `surefoot-core`, which knows no tensors and is re-exported here:
//! the engine ([`Burn`]), discovery and probing of devices ([`device`]), placement, precision and
//! bounds ([`place`]), and the classification of Burn's and cubecl's errors ([`fault`]).

#![cfg_attr(not(test), warn(clippy::expect_used))]

pub mod device;
mod engine;
pub mod fault;
pub mod place;
mod tensors;

/// Recovery: guarded work, the ladder, the policy, drills. See [`surefoot_core::recover`].
pub mod recover {
    pub use surefoot_core::recover::*;

    pub use crate::engine::StepExt;

    /// A piece of guarded work on Burn's devices.
    pub type Task<'f> = surefoot_core::recover::Task<'f, crate::Burn>;
    /// One try of a piece of guarded work on Burn's devices.
    pub type Step<'f> = surefoot_core::recover::Step<'f, crate::Burn>;
}

pub use engine::{Burn, StepExt};
pub use fault::{BoxError, Fault, FaultKind};
pub use surefoot_core::{Room, journal};

/// What Burn's work runs on: the chain of usable devices, their health, the memory budget, the
/// policy and the journal. Built once; shared by reference among all threads.
pub type Footing = surefoot_core::Footing<Burn>;
/// Chooses what a [`Footing`] is made of.
pub type FootingBuilder = surefoot_core::FootingBuilder<Burn>;

/// What most programs need.
pub mod prelude {
    pub use crate::device::{DeviceName, Selector};
    pub use crate::journal::Journal;
    pub use crate::place::{Precision, Weights};
    pub use crate::recover::{Confirm, Drill, Join, Outcome, Part, Policy, Rung, Splittable, Step};
    pub use crate::{BoxError, Burn, Fault, FaultKind, Footing, StepExt};
}
