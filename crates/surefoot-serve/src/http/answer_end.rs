//! Why an answer ended, as the API says it in `finish_reason`.

use serde::Serialize;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerEnd {
    /// The model ended it, or a stop text was reached.
    Stop,
    /// It has as many tokens as were asked for, or as there is room for.
    Length,
    /// It ends with calls of tools, whose results the model waits for.
    ToolCalls,
}
