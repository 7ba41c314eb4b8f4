//! Why a request was not accepted, or accepted and not answered.

use std::sync::Arc;
use std::time::Duration;

use surefoot::{Fault, FaultKind};
use surefoot_models::ModelError;

use crate::structured::FormatError;

/// Why a request failed. The others of its batch are not affected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The queue is full.
    #[error("the queue is full: {0} requests may wait")]
    Full(usize),
    /// The engine is shutting down.
    #[error("the server is shutting down")]
    Closed,
    /// A thread of the engine panicked while it worked on the request. The thread goes on with the
    /// next requests.
    #[error(
        "a defect in the server ended the work on this request; its log names the defect. Send the \
         request again, and please report the defect"
    )]
    Panicked,
    /// Its time limit is over.
    #[error("the request was not done within {:.1} s", .0.as_secs_f64())]
    Expired(Duration),
    /// It can't be done by this model.
    #[error("{0}")]
    Request(String),
    /// The format that the answer must have can't be kept to any further.
    #[error("the answer can't go on in the format that was asked for: {0}")]
    Constraint(FormatError),
    /// The numbers that came of it are inf or NaN.
    #[error("the model gave numbers that are not finite for this request")]
    NotFinite,
    /// The model folder is not as it should be, or the work doesn't fit the memory.
    #[error("{0}")]
    Model(Arc<ModelError>),
    /// A device failed and the ladder had no rung left.
    #[error("{0}")]
    Fault(Arc<Fault>),
}

impl EngineError {
    /// Whether the same request could be answered later or elsewhere.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Full(_) | Self::Closed | Self::Panicked | Self::Expired(_) => true,
            Self::Fault(fault) => fault.retryable && fault.kind != FaultKind::Numeric,
            Self::Request(_) | Self::Constraint(_) | Self::NotFinite | Self::Model(_) => false,
        }
    }
}

impl From<Fault> for EngineError {
    fn from(fault: Fault) -> Self {
        Self::Fault(Arc::new(fault))
    }
}
