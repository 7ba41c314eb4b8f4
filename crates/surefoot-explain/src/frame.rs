//! The user's own frame of a Python traceback: the last one that is in no library.

use std::sync::OnceLock;

use regex::Regex;
use serde::Serialize;

/// A place in the user's code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Frame {
    /// The file.
    pub file: String,
    /// The line in it.
    pub line: u64,
    /// The function.
    pub function: String,
    /// The line itself, where the traceback has it.
    pub code: Option<String>,
}

/// Parts of paths that are libraries, not the user's code.
const LIBRARIES: &[&str] = &[
    "site-packages",
    "dist-packages",
    "/lib/python",
    "\\lib\\",
    "<frozen",
    "<string>",
    "/torch/nn/",
    "/torch/autograd/",
    "/torch/optim/",
    "/torch/utils/",
    "/torch/_",
];

impl Frame {
    /// The last frame of the user's own code in a traceback, if there is one.
    pub(crate) fn of(text: &str) -> Option<Self> {
        static FRAME: OnceLock<Option<Regex>> = OnceLock::new();
        let frame = FRAME
            .get_or_init(|| Regex::new(r#"File "([^"\n]+)", line (\d+), in ([^\n]+)"#).ok())
            .as_ref()?;
        let own = |file: &str| {
            let file = file.to_ascii_lowercase();
            !LIBRARIES.iter().any(|library| file.contains(library))
        };
        let found = frame.captures_iter(text).filter(|found| own(&found[1])).last()?;
        let after = &text[found.get(0)?.end()..];
        let code = after.strip_prefix('\n').and_then(|rest| rest.lines().next());
        Some(Self {
            file: found[1].to_owned(),
            line: found[2].parse().ok()?,
            function: found[3].trim().to_owned(),
            code: code
                .filter(|line| line.starts_with("    "))
                .map(|line| line.trim().to_owned())
                .filter(|line| !line.is_empty() && !line.starts_with("File \"")),
        })
    }
}
