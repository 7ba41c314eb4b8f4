//! Is this the same model? Fingerprints, comparison and proof in bounded memory.
//!
//! The statistics are in `surefoot-stats`, which knows no models; its modules are re-exported here.
//!
//! 1. [`challenge`]: the token sequences that both models are given follow from a key and are fixed
//!    before anything runs.
//! 2. [`capture`]: one pass over all of them; at each [`site`] the activations become a [`sketch`].
//! 3. [`noise`]: the same weights, run in other variants, tell how far a model deviates from itself.
//! 4. [`compare`] measures deviations against that noise, [`decision`] is a sequential test
//!    ([`betting`]) until one of two hypotheses is refuted.
//! 5. [`fingerprint`]: all of it in a file that commits to itself (a Merkle tree, a [`seal`]).
//!
//! A [`verifier::Verifier`] does all of it on one footing: [`fingerprint`](verifier::Verifier::fingerprint),
//! [`compare`](verifier::Verifier::compare), [`identify`](verifier::Verifier::identify) and
//! [`recheck`](verifier::Verifier::recheck). [`shard`] splits the challenges over machines.
//!
//! ```
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use surefoot::Footing;
//! use surefoot_models::runner::Runner;
//! use surefoot_verify::challenge::ChallengeSet;
//! use surefoot_verify::decision::{DecisionRule, Verdict};
//! use surefoot_verify::fingerprint::SketchPolicy;
//! use surefoot_verify::site::SiteSelection;
//! use surefoot_verify::transcript::Transcript;
//! use surefoot_verify::verifier::Verifier;
//!
//! # let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures");
//! # let model = fixtures.join("llama-tiny");
//! let footing = Arc::new(Footing::builder().build()?);
//! let verifier = Verifier::new(|folder| Runner::open(Arc::clone(&footing), folder), |_progress| {});
//! let set = ChallengeSet::keyed([7; 32], "an example", 256, 20, 6)?;
//! let policy = SketchPolicy { bits: 8192, sites: SiteSelection::All };
//! let reference = verifier.reference(&model, &set, policy, None)?;
//! let candidate = verifier.candidate(&model, &set, policy)?;
//! let transcript = Transcript::of_models(reference, candidate, DecisionRule::default())?;
//! assert_eq!(transcript.comparison.decision.verdict, Verdict::Same);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::expect_used))]
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod capture;
pub mod challenge_source;
pub mod compare;
pub mod document;
pub mod endpoint;
mod error;
pub mod fingerprint;
pub mod identity;
pub mod library;
pub mod quality;
pub mod recheck;
pub mod report;
pub mod seal;
pub mod shard;
pub mod subject;
pub mod transcript;
mod tree;
pub mod verdict;
pub mod verifier;
pub mod weight_form;
pub mod weights;

pub use error::VerifyError;
pub use surefoot_stats::{
    StatsError, betting, challenge, decision, disturbance, hamming, hex, hypervector, noise, site,
    sketch,
};
