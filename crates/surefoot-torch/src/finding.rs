//! What a rule says: where, how bad, why, and how to mend it.

use ruff_text_size::TextRange;
use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Slower or heavier than need be.
    Hint,
    /// Breaks or misleads on some machines.
    Warning,
    /// Fails or gives wrong numbers when it runs.
    Error,
}

impl Severity {
    /// The word printed before the message.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hint => "hint",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A replacement of one stretch of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The bytes replaced; an empty range inserts.
    pub range: TextRange,
    /// What stands there afterwards.
    pub text: String,
}

/// A safe way to mend a finding: all edits or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// What the fix does, in a few words.
    pub title: String,
    /// The edits; they don't overlap.
    pub edits: Vec<Edit>,
}

/// One finding of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule's code, such as `SF001`.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The stretch of the source it is about.
    pub range: TextRange,
    /// What is wrong, in one line.
    pub message: String,
    /// What to do instead.
    pub help: String,
    /// How to mend it without risk, where that is possible.
    pub fix: Option<Fix>,
}
