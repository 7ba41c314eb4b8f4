//! What can go wrong with a device, as one vocabulary for the classifier, the recovery
//! ladder, the journal and the program.

mod kind;

pub use kind::FaultKind;
