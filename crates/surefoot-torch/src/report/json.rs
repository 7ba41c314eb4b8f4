//! One JSON document: findings, errors and counts.

use serde::Serialize;

use super::extent;
use crate::finding::{Finding, Severity};
use crate::project::CheckReport;
use crate::rules;
use crate::source::{FileError, Source};

/// The document.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    version: u32,
    findings: Vec<Row<'a>>,
    errors: &'a [FileError],
    files: usize,
    lines: usize,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    code: &'a str,
    name: &'a str,
    severity: Severity,
    message: &'a str,
    help: &'a str,
    fix: Option<FixRow<'a>>,
}

#[derive(Debug, Serialize)]
struct FixRow<'a> {
    title: &'a str,
    edits: Vec<EditRow<'a>>,
}

#[derive(Debug, Serialize)]
struct EditRow<'a> {
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    text: &'a str,
}

/// The report as a document.
pub fn document(report: &CheckReport) -> Document<'_> {
    let rows = report
        .checked
        .iter()
        .flat_map(|checked| checked.findings.iter().map(|finding| row(&checked.source, finding)));
    Document {
        version: 1,
        findings: rows.collect(),
        errors: &report.errors,
        files: report.files,
        lines: report.lines,
    }
}

fn row<'a>(source: &'a Source, finding: &'a Finding) -> Row<'a> {
    let (start, end) = extent(source, finding.range);
    let fix = finding.fix.as_ref().map(|fix| FixRow {
        title: &fix.title,
        edits: fix
            .edits
            .iter()
            .map(|edit| {
                let (start, end) = extent(source, edit.range);
                EditRow {
                    line: start.line,
                    column: start.column,
                    end_line: end.line,
                    end_column: end.column,
                    text: &edit.text,
                }
            })
            .collect(),
    });
    Row {
        path: &source.path,
        cell: start.cell,
        line: start.line,
        column: start.column,
        end_line: end.line,
        end_column: end.column,
        code: finding.code,
        name: rules::find(finding.code).map_or("", |rule| rule.name),
        severity: finding.severity,
        message: &finding.message,
        help: &finding.help,
        fix,
    }
}
