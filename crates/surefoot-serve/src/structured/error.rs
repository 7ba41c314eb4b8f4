//! Why a text can't be held to a format.

/// Why a text can't be held to a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A JSON schema that is wrong, or says something that can't be enforced.
    #[error("the JSON schema can't be used: {problem} (at '#{path}')")]
    Schema {
        /// The JSON pointer of the place.
        path: String,
        /// What is wrong there.
        problem: String,
    },
    /// A regular expression that can't be read.
    #[error("the regular expression can't be used: {0}")]
    Regex(String),
    /// A grammar that can't be read.
    #[error("the grammar can't be used: {problem} (line {line})")]
    Grammar {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// No text has the format, or the model has no tokens for it.
    #[error("no text of the model's tokens can have this format")]
    Unsatisfiable,
    /// The format takes more memory or time than a request may.
    #[error("the format is too large or too ambiguous: {0}")]
    TooLarge(String),
    /// The vocabulary has no token that goes on.
    #[error("the model's vocabulary has no token with which the text could go on")]
    NoToken,
    /// The library that enforces formats failed.
    #[error("a defect in the library that enforces formats: {0}")]
    Defect(String),
}
