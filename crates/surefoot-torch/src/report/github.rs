//! Workflow commands of GitHub Actions: findings show up beside the lines of a pull request.

use super::extent;
use crate::finding::Severity;
use crate::project::CheckReport;

/// One command a line.
pub fn render(report: &CheckReport) -> String {
    let mut out = String::new();
    for error in &report.errors {
        let place = error
            .place
            .map(|place| format!(",line={},col={}", place.line, place.column))
            .unwrap_or_default();
        let (path, message) = (property(&error.path), data(&error.message));
        out.push_str(&format!("::error file={path}{place},title=surefoot::{message}\n"));
    }
    for checked in &report.checked {
        for finding in &checked.findings {
            let (start, end) = extent(&checked.source, finding.range);
            let level = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Hint => "notice",
            };
            let cell = start.cell.map(|cell| format!("cell {cell}: ")).unwrap_or_default();
            // Columns are only allowed where a finding stays on one line.
            let columns = if start.line == end.line {
                format!(",col={},endColumn={}", start.column, end.column)
            } else {
                String::new()
            };
            out.push_str(&format!(
                "::{level} file={},line={},endLine={}{columns},title={}::{}\n",
                property(&checked.source.path),
                start.line,
                end.line,
                finding.code,
                data(&format!("{cell}{} ({})", finding.message, finding.help)),
            ));
        }
    }
    out
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::property;

    #[test]
    fn separators_are_escaped() {
        assert_eq!(property("a,b:c%\n"), "a%2Cb%3Ac%25%0A");
    }
}
