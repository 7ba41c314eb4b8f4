//! Is this the same model? Fingerprints, comparison and proof in bounded memory.
//!
//! How it goes, and where it is:
//!
//! 1. [`challenge`]: what both models are asked follows from a key and is fixed first.
//! 2. [`capture`]: one pass over all of them; at each [`site`] the activations become a [`sketch`].
//! 3. [`noise`]: the same weights, run in other ways, tell how far a model deviates from itself.
//! 4. [`compare`] measures deviations against that noise, [`decision`] bets on the outcome
//!    ([`betting`]) until one of two hypotheses is refuted.
//! 5. [`fingerprint`]: all of it in a file that commits to itself (a Merkle tree, a [`seal`]).

#![forbid(unsafe_code)]

pub mod betting;
pub mod calibrate;
pub mod capture;
pub mod challenge;
pub mod compare;
pub mod decision;
pub mod endpoint;
mod error;
pub mod fingerprint;
pub mod hamming;
pub mod hex;
pub mod hypervector;
pub mod identity;
pub mod library;
pub mod noise;
mod projection;
pub mod recheck;
pub mod report;
pub mod seal;
mod seed;
pub mod site;
pub mod sketch;
pub mod transcript;
mod tree;

pub use error::VerifyError;
