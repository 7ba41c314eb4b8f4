//! `# noqa` and `# noqa: SF001, SF013`: findings that the author has looked at.

use ruff_python_ast::token::{TokenKind, Tokens};
use ruff_text_size::Ranged;
use rustc_hash::FxHashMap;

use crate::finding::Finding;
use crate::source::Source;

/// What the comments of a file silence, by line.
pub(crate) struct Silenced {
    /// `None`: everything on that line.
    by_row: FxHashMap<usize, Option<Vec<String>>>,
}

impl Silenced {
    pub(crate) fn read(source: &Source, tokens: &Tokens) -> Self {
        let mut by_row = FxHashMap::default();
        let text = source.text.as_bytes();
        let mentioned = memchr::memmem::find(text, b"noqa").is_some()
            || memchr::memmem::find(text, b"NOQA").is_some()
            || memchr::memmem::find(text, b"NoQA").is_some();
        if mentioned {
            for token in tokens.iter().filter(|token| token.kind() == TokenKind::Comment) {
                if let Some(codes) = parse(&source.text[token.range()]) {
                    by_row.insert(source.row(token.start()), codes);
                }
            }
        }
        Self { by_row }
    }

    /// Whether a comment on the finding's first or last line silences it.
    pub(crate) fn silences(&self, source: &Source, finding: &Finding) -> bool {
        if self.by_row.is_empty() {
            return false;
        }
        let rows = [source.row(finding.range.start()), source.row(finding.range.end())];
        rows.iter().any(|row| match self.by_row.get(row) {
            None => false,
            Some(None) => true,
            Some(Some(codes)) => codes.iter().any(|code| code.eq_ignore_ascii_case(finding.code)),
        })
    }
}

/// Reads a comment: `None` if it is no `noqa`, `Some(None)` for one without codes.
pub(crate) fn parse(comment: &str) -> Option<Option<Vec<String>>> {
    let lower = comment.to_ascii_lowercase();
    let at = lower.find("noqa")?;
    let before = lower[..at].trim_end();
    if !before.ends_with('#') {
        return None;
    }
    let rest = &comment[at + 4..];
    if rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let Some(list) = rest.trim_start().strip_prefix(':') else { return Some(None) };
    let codes: Vec<String> = list
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|code| !code.is_empty())
        .take_while(|code| code.chars().all(|c| c.is_ascii_alphanumeric()))
        .map(str::to_owned)
        .collect();
    Some(Some(codes))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn comments_are_read_as_people_write_them() {
        let codes = |list: &[&str]| Some(Some(list.iter().map(|s| (*s).to_owned()).collect()));
        assert_eq!(parse("# noqa"), Some(None));
        assert_eq!(parse("#NOQA"), Some(None));
        assert_eq!(parse("# noqa: SF001"), codes(&["SF001"]));
        assert_eq!(parse("# noqa:SF001,SF002"), codes(&["SF001", "SF002"]));
        assert_eq!(parse("# type: ignore # noqa: SF001 sf009"), codes(&["SF001", "sf009"]));
        assert_eq!(parse("# noqa: SF001 - it is filled by the driver"), codes(&["SF001"]));
        assert_eq!(parse("# see noqa"), None);
        assert_eq!(parse("# noqable"), None);
    }
}
