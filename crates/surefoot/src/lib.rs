//! Surefoot's core: what a process stands on when it runs work on devices that can fail.
//!
//! Build a [`Footing`] once; run work through it. A fault is caught, classified, answered by
//! the next rung of a ladder that the [`Policy`](recover::Policy) allows, and told.
//!
//! ```
//! use burn::tensor::{Distribution, Tensor};
//! use surefoot::Footing;
//!
//! let footing = Footing::builder().build()?;
//! let product = footing.run("product", |step| {
//!     let a = Tensor::<2>::random([64, 64], Distribution::Default, step.device());
//!     Ok(a.clone().matmul(a))
//! })?;
//! assert_eq!(product.dims(), [64, 64]);
//! # Ok::<(), surefoot::Fault>(())
//! ```

pub mod device;
pub mod fault;
mod footing;
pub mod journal;
pub mod place;
pub mod recover;

pub use fault::{BoxError, Fault, FaultKind};
pub use footing::{Footing, FootingBuilder};
