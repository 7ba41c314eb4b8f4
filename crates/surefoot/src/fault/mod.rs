//! What can go wrong with a device, as one vocabulary for the classifier, the recovery
//! ladder, the journal and the program.

mod explain;
mod kind;
mod rules;

pub use explain::{Explanation, MAX_TEXT, explain};
pub use kind::FaultKind;
pub use rules::advice_for;
