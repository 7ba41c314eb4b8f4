//! How long a caller waits.

use std::time::Instant;

/// How long a caller waits for what others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until then.
    Until(Instant),
    /// As long as it takes.
    Forever,
}
