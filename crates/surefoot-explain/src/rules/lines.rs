//! The lines of a log: which are errors, which are remarks, which are stack frames.
//!
//! A single-line message is one error line. Everything is worked out when it is asked for, since
//! most messages need none of it.

use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Part of a stack trace: paths and source code, never the error itself.
    Frame,
    /// A warning, an information, a debug line.
    Remark,
    /// Anything else.
    Error,
}

/// A text and its lines.
pub(super) struct Log<'a> {
    text: &'a str,
    /// Where each line found so far begins; the search asks for them in order.
    starts: Vec<usize>,
    /// The last line that names an error; outer `None` until it is asked for.
    last_error: Option<Option<usize>>,
    /// The line that was asked for last, and its role.
    role: Option<(usize, Role)>,
    one_line: bool,
}

impl<'a> Log<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let one_line = !text.trim_end().contains('\n');
        Self { text, starts: vec![0], last_error: None, role: None, one_line }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// The number of the line that holds the byte at `offset`.
    pub(super) fn line_at(&mut self, offset: usize) -> usize {
        if self.one_line {
            return 0;
        }
        let mut last = self.starts[self.starts.len() - 1];
        while let Some(length) = self.text[last..].find('\n') {
            let next = last + length + 1;
            if next > offset {
                break;
            }
            self.starts.push(next);
            last = next;
        }
        self.starts.partition_point(|&start| start <= offset) - 1
    }

    /// Where a line begins, and the line.
    pub(super) fn line(&self, line: usize) -> (usize, &'a str) {
        let start = self.starts[line];
        let rest = &self.text[start..];
        let end = if self.one_line { None } else { rest.find('\n') };
        (start, &rest[..end.unwrap_or(rest.len())])
    }

    pub(super) fn role(&mut self, line: usize) -> Role {
        if self.one_line {
            return Role::Error;
        }
        if let Some((known, role)) = self.role
            && known == line
        {
            return role;
        }
        let role = self.read_role(line);
        self.role = Some((line, role));
        role
    }

    fn read_role(&self, line: usize) -> Role {
        let (_, content) = self.line(line);
        let forms = forms();
        if forms.frame.is_match(content.as_bytes()) || self.is_source_line(line) {
            Role::Frame
        } else if forms.remark.is_match(content.as_bytes())
            && !forms.error.is_match(content.as_bytes())
        {
            Role::Remark
        } else {
            Role::Error
        }
    }

    /// A line of source code: the one below a Python frame.
    fn is_source_line(&self, line: usize) -> bool {
        let Some(above) = line.checked_sub(1) else { return false };
        let (_, content) = self.line(line);
        let (_, above) = self.line(above);
        let indent = |line: &str| line.len() - line.trim_start().len();
        indent(content) > indent(above) && forms().python_frame.is_match(above.as_bytes())
    }

    /// Whether an error comes after this line.
    pub(super) fn error_follows(&mut self, line: usize) -> bool {
        let start = self.starts[line];
        self.last_error().is_some_and(|last| last > start)
    }

    /// Whether this is the line of the last error, in a text that has several lines.
    pub(super) fn is_last_error(&mut self, line: usize) -> bool {
        let start = self.starts[line];
        !self.one_line && self.last_error() == Some(start)
    }

    /// Where the last line that names an error begins.
    fn last_error(&mut self) -> Option<usize> {
        if let Some(known) = self.last_error {
            return known;
        }
        let mut end = self.text.trim_end().len();
        let mut found = None;
        while end > 0 {
            let start = self.text[..end].rfind('\n').map_or(0, |at| at + 1);
            let line = &self.text.as_bytes()[start..end];
            let forms = forms();
            if forms.error.is_match(line)
                && !forms.frame.is_match(line)
                && !forms.echo.is_match(line)
            {
                found = Some(start);
                break;
            }
            end = start.saturating_sub(1);
        }
        self.last_error = Some(found);
        found
    }
}

/// Whether a line begins a message of its own, and doesn't go on with the one above it.
pub(crate) fn begins_message(line: &str) -> bool {
    forms().beginning.is_match(line.as_bytes())
}

struct Forms {
    /// The end of a program that died of something above.
    echo: Regex,
    beginning: Regex,
    frame: Regex,
    python_frame: Regex,
    remark: Regex,
    error: Regex,
}

fn forms() -> &'static Forms {
    static FORMS: OnceLock<Forms> = OnceLock::new();
    FORMS.get_or_init(|| Forms {
        // Python; rich's box; Rust and C++ backtraces; JavaScript and Java; gdb; markers.
        frame: form(
            r#"(?x) ^[\s|]* (
                file\ "[^"]*",\ line\ \d+ | \#\d+\ +0x | frame\ \#\d+: | \d+:\ +0x[0-9a-f]+\ -
                | \d+:\ [\w<][\w<>:{}&,'\ \[\]]*(::[\w<>{}]+)+(::h[0-9a-f]{16})?$
                | at\ [./\w<][^\ ]*:\d+(:\d+)?$ | at\ [\w.$<>/]+\ ?\( | \^[\^~]*\s*$
                | traceback\ \(most\ recent | \.\.\.\ \d+\ frames | ❱?\ ?\d+\ │
                | -+>\ \d+\  | note:\ run\ with\ `rust_backtrace
            )"#,
        ),
        echo: form(
            r"^\W*aborted \(core dumped\)|\belastic\.multiprocessing\b|\bChildFailedError\b|\bCalledProcessError\b|\b(to find|see|inspect|check)\b.{0,40}\b(original|root|stack ?trace|above|logs?)\b.{0,24}\b(error|exception|cause|details?)\b|\bexit(ed)? (with )?(code|status):? 1\b|\bprocess terminated unexpectedly\b",
        ),
        beginning: form(
            r"^[\s\[(|]*(\w+(error|exception|warning|exit|interrupt)\b|(error|fatal|critical|warn|warning|info|debug|note|hint|usage)\b\W|during handling|the above exception|process finished|aborted|terminate called|thread '|\d{4}-\d\d-\d\d|[A-Z]\d{4} )",
        ),
        python_frame: form(r#"^[\s|]*file "[^"]*", line \d+"#),
        remark: form(
            r"\b\w*warning\b|\bwarn\b|\[W\b|^W\d{4}|\b(info|debug|trace|notice)\b[:\]) ]|^I\d{4}|^\s*(hint|tip|note):",
        ),
        error: form(
            r"(^|[\s\[.])(\w*(error|exception|interrupt|exit|fault|assertionfailed)\b.{0,3}:|panicked at|error[\s:\]]|fatal[\s:\]]|critical[\s:\]]|terminate called|assertion failed|aborted|killed$|panic:|\w+(error|exception)$)|\[e:",
        ),
    })
}

fn form(source: &str) -> Regex {
    RegexBuilder::new(source)
        .case_insensitive(true)
        .unicode(false)
        .build()
        .unwrap_or_else(|error| panic!("a line form is wrong: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(text: &str) -> Vec<Role> {
        let mut log = Log::new(text);
        let last = log.line_at(text.len() - 1);
        (0..=last).map(|line| log.role(line)).collect()
    }

    #[test]
    fn frames_and_their_source_are_not_errors() {
        let text = "Traceback (most recent call last):\n  File \"/a/oom.py\", line 3, in f\n    raise oom()\nValueError: x\n";
        assert_eq!(roles(text), [Role::Frame, Role::Frame, Role::Frame, Role::Error]);
        let text = "panicked at src/main.rs:1:2:\n   3: 0x55 - core::panicking::panic\n             at /rustc/lib.rs:3:4\n   4: std::panicking::begin\n";
        assert_eq!(roles(text)[1..], [Role::Frame, Role::Frame, Role::Frame]);
    }

    #[test]
    fn warnings_are_remarks_and_the_last_error_is_found() {
        let text = "UserWarning: low memory\nValueError: bad\nINFO: done\n";
        assert_eq!(roles(text), [Role::Remark, Role::Error, Role::Remark]);
        let mut log = Log::new(text);
        log.line_at(text.len() - 1);
        assert!(log.error_follows(0));
        assert!(log.is_last_error(1));
        assert!(!log.error_follows(2));
    }
}
