//! The learned last stage: a linear model over character and word n-grams, for texts that the
//! rules are not sure about.
//!
//! A text becomes a list of hashed features (`features`), of which those that the model knows count
//! (`vocabulary`, `reading`); a model scores the kinds by adding one
//! row of eight-bit weights per feature (`model`), and the calibration (`calibration`) joins the
//! scores with what the rules say into probabilities. The weights are trained from the labelled
//! messages of this crate by `cargo run --release -p surefoot-explain --example learned_stage -- train`
//! (`training`), which is seeded and gives the same bytes on every platform: integers are added,
//! and logarithms and exponentials come from `libm`, not from the platform.
//!
//! [`explain`](crate::explain()) asks the embedded model only where the rules' confidence is at most
//! [`RULES_SURE_ABOVE`]. Recovery never asks it: [`kind_of_text`](crate::kind_of_text) uses rules alone.

mod calibration;
mod decision;
mod evidence;
mod features;
mod model;
mod reading;
mod training;
mod vocabulary;

pub use calibration::{Calibration, Observation, RulesAnswer};
pub use decision::{Decision, decide, doubt};
pub use model::{BadModel, KINDS, Model, Scores};
pub use training::{Sample, Settings, train};

pub(crate) use decision::decide_on;
pub(crate) use evidence::evidence;

/// The rules decide alone where their confidence is above this. On messages that they had not been
/// tuned on (rounds G to S) they were right on 95 % above it and on 50 % below; see BENCHMARKS.md.
pub const RULES_SURE_ABOVE: f32 = 0.5;
