//! Why a document, a request or a comparison was refused. None of these is ever turned into a
//! verdict.

/// A refusal, with the problem in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatsError {
    /// A stored document is malformed, damaged or inconsistent with itself.
    #[error("{0}")]
    Document(String),
    /// The two sides cannot be compared.
    #[error("{0}")]
    Incomparable(String),
    /// The caller asked for something that cannot be done.
    #[error("{0}")]
    Request(String),
}

impl StatsError {
    /// A malformed or inconsistent document.
    pub fn document(problem: impl Into<String>) -> Self {
        Self::Document(problem.into())
    }

    /// Two sides that cannot be compared.
    pub fn incomparable(problem: impl Into<String>) -> Self {
        Self::Incomparable(problem.into())
    }

    /// A request that cannot be met.
    pub fn request(problem: impl Into<String>) -> Self {
        Self::Request(problem.into())
    }
}
