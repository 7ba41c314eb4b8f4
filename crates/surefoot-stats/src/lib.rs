//! Statistics for the question "is this the same model?", on slices of numbers.
//!
//! Nothing here knows a tensor library, a file system or a device. `surefoot-verify` feeds it with
//! activations of its own models, the Python package with those of PyTorch modules:
//!
//! 1. [`challenge`]: token sequences that follow from a key, fixed before anything runs.
//! 2. [`capture`]: the activations at each [`site`] become a [`sketch`] (a seeded [`projection`]).
//! 3. [`disturbance`] and [`noise`]: runs of the same weights in other variants tell how far a
//!    model deviates from itself; tolerances follow from that.
//! 4. [`comparison`]: deviations beyond the tolerance, and [`decision`]: a sequential test
//!    ([`betting`]) until one of two hypotheses is refuted.
//! 5. [`hypervector`] and [`hamming`]: one vector for a model, and the search among many.
//!
//! Everything is reproducible: the same numbers give the same sketches and verdicts on every
//! machine and for every number of threads. Formats and random streams are therefore fixed
//! ([`keyed_stream`], [`hex`]).
//!
//! ```
//! use surefoot_stats::capture::{Captures, Recorder};
//! use surefoot_stats::comparison::{Side, compare};
//! use surefoot_stats::decision::{DecisionRule, Verdict};
//! use surefoot_stats::disturbance::Disturbance;
//! use surefoot_stats::noise::{Deviations, Noise, NoiseClass, RunVariant};
//! use surefoot_stats::site::Site;
//!
//! // One site, 32 challenges, activations of width 64.
//! fn run(disturbance: Disturbance) -> Result<Captures, surefoot_stats::StatsError> {
//!     let mut numbers: Vec<f32> = (0..32 * 64).map(|x| (x as f32 * 0.37).sin()).collect();
//!     disturbance.apply(&mut numbers, 64, 1, 0);
//!     let mut recorder = Recorder::new(1024, &[1; 32])?;
//!     recorder.record(Site::Block(0), &numbers, 64)?;
//!     Ok(recorder.finish())
//! }
//! let reference = run(Disturbance::None)?;
//! let repeat = |seed| run(Disturbance::summation_order(64, seed));
//! let runs = vec![
//!     Deviations::between(&reference, &repeat(1)?),
//!     Deviations::between(&reference, &repeat(2)?),
//! ];
//! let class = NoiseClass::Arithmetic;
//! let noise = Noise { variants: vec![RunVariant { name: "summation".into(), class, runs }] };
//! let candidate = repeat(3)?;
//! let comparison = compare(
//!     Side { sites: &reference.sites, sketches: &reference.sketches },
//!     &noise,
//!     class,
//!     Side { sites: &candidate.sites, sketches: &candidate.sketches },
//!     &DecisionRule::default(),
//! )?;
//! assert_eq!(comparison.decision.verdict, Verdict::Same);
//! # Ok::<_, surefoot_stats::StatsError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]
#![forbid(unsafe_code)]

pub mod betting;
pub mod capture;
pub mod challenge;
pub mod comparison;
pub mod decision;
pub mod disturbance;
mod error;
pub mod hamming;
pub mod hex;
pub mod hypervector;
pub mod keyed_stream;
pub mod noise;
pub mod projection;
pub mod site;
pub mod sketch;

pub use error::StatsError;
