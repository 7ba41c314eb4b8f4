//! An open document: its text, what the rules find in it, and places as the protocol counts them.

use std::path::PathBuf;

use lsp_types::{Diagnostic, DiagnosticSeverity, NumberOrString, Position, Range, TextEdit, Uri};
use surefoot_torch::check::check;
use surefoot_torch::finding::{Edit, Finding, Severity};
use surefoot_torch::rules::CheckRule;
use surefoot_torch::source::{FileError, Source, Units};

/// A document that the editor has open.
pub(crate) struct Document {
    pub(crate) uri: Uri,
    pub(crate) version: i32,
    pub(crate) rules: Vec<&'static CheckRule>,
    /// What the rules find; empty while the text can't be parsed.
    pub(crate) findings: Vec<Finding>,
    /// The text as the editor has it.
    pub(crate) text: String,
    /// The text as it is checked, or why it can't be.
    source: Result<Source, FileError>,
    units: Units,
}

impl Document {
    /// Checks a text with these rules.
    pub(crate) fn new(
        uri: Uri,
        version: i32,
        text: String,
        rules: Vec<&'static CheckRule>,
        units: Units,
    ) -> Self {
        let name =
            path(&uri).map_or_else(|| uri.as_str().to_owned(), |path| path.display().to_string());
        let checked = Source::from_text(name, text.clone())
            .and_then(|source| Ok((check(&source, &rules)?, source)));
        let (findings, source) = match checked {
            Ok((findings, source)) => (findings, Ok(source)),
            Err(error) => (Vec::new(), Err(error)),
        };
        Self { uri, version, rules, findings, text, source, units }
    }

    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.as_ref().ok()
    }

    /// What the editor shows: the findings, or why there are none.
    pub(crate) fn diagnostics(&self) -> Vec<Diagnostic> {
        match &self.source {
            Ok(source) => {
                self.findings.iter().map(|finding| self.diagnostic(source, finding)).collect()
            }
            // While someone types, most texts don't parse: that is no more than a note.
            Err(error) => {
                let place = error.place.map_or(Position::default(), |place| {
                    Position::new(number(place.line.saturating_sub(1)), 0)
                });
                vec![Diagnostic {
                    range: Range::new(place, place),
                    severity: Some(DiagnosticSeverity::HINT),
                    source: Some("surefoot".to_owned()),
                    message: format!("not checked: {}", error.message),
                    ..Diagnostic::default()
                }]
            }
        }
    }

    pub(crate) fn diagnostic(&self, source: &Source, finding: &Finding) -> Diagnostic {
        Diagnostic {
            range: self.range(source, finding),
            severity: Some(match finding.severity {
                Severity::Error => DiagnosticSeverity::ERROR,
                Severity::Warning => DiagnosticSeverity::WARNING,
                _ => DiagnosticSeverity::INFORMATION,
            }),
            code: Some(NumberOrString::String(finding.code.to_owned())),
            source: Some("surefoot".to_owned()),
            message: format!("{}\n{}", finding.message, finding.help),
            ..Diagnostic::default()
        }
    }

    pub(crate) fn range(&self, source: &Source, finding: &Finding) -> Range {
        self.span(source, finding.range.start().into(), finding.range.end().into())
    }

    pub(crate) fn text_edit(&self, source: &Source, edit: &Edit) -> TextEdit {
        let range = self.span(source, edit.range.start().into(), edit.range.end().into());
        TextEdit { range, new_text: edit.text.clone() }
    }

    /// From one byte of the text to another.
    pub(crate) fn span(&self, source: &Source, start: usize, end: usize) -> Range {
        let position = |at| {
            let (line, character) = source.position(at, self.units);
            Position::new(number(line), number(character))
        };
        Range::new(position(start), position(end))
    }

    /// The byte of the text at a position.
    pub(crate) fn offset(&self, source: &Source, position: Position) -> usize {
        source.offset(position.line as usize, position.character as usize, self.units)
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The file that a URI names, if it names one.
pub(crate) fn path(uri: &Uri) -> Option<PathBuf> {
    if uri.scheme().map(|scheme| scheme.as_str()) != Some("file") {
        return None;
    }
    let path = uri.path().as_estr().decode().into_string().ok()?.into_owned();
    // On Windows a URI's path is `/C:/…`.
    let bytes = path.as_bytes();
    let drive = bytes.len() > 2 && bytes[1].is_ascii_alphabetic() && bytes[2] == b':';
    Some(PathBuf::from(if drive { path[1..].to_owned() } else { path }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_files_are_paths() {
        let path =
            |uri: &str| path(&uri.parse().expect("a URI")).map(|path| path.display().to_string());
        assert_eq!(path("file:///a/b%20c/%C3%A9.py").as_deref(), Some("/a/b c/é.py"));
        assert_eq!(path("file:///C:/a.py").as_deref(), Some("C:/a.py"));
        assert_eq!(path("untitled:Untitled-1"), None);
    }
}
