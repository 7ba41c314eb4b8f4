//! SARIF 2.1.0, for code-scanning services.

use serde_json::{Value, json};

use super::extent;
use crate::finding::{Finding, Severity};
use crate::project::CheckReport;
use crate::rules;
use crate::source::{FileError, Source};

/// The report as a SARIF log.
pub fn document(report: &CheckReport) -> Value {
    let rules: Vec<Value> = rules::ALL
        .iter()
        .map(|rule| {
            json!({
                "id": rule.code,
                "name": rule.name,
                "shortDescription": {"text": rule.summary},
                "fullDescription": {"text": rule.summary},
                "help": {"text": rule.page, "markdown": rule.page},
                "defaultConfiguration": {"level": level(rule.severity)},
            })
        })
        .collect();
    let results: Vec<Value> = report
        .checked
        .iter()
        .flat_map(|checked| checked.findings.iter().map(|finding| result(&checked.source, finding)))
        .collect();
    let notifications: Vec<Value> = report.errors.iter().map(notification).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "surefoot",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
            "invocations": [{
                "executionSuccessful": report.errors.is_empty(),
                "toolExecutionNotifications": notifications,
            }],
        }],
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Hint => "note",
    }
}

fn result(source: &Source, finding: &Finding) -> Value {
    let (start, end) = extent(source, finding.range);
    let index = rules::ALL.iter().position(|rule| rule.code == finding.code).unwrap_or(0);
    let mut location = json!({
        "physicalLocation": {
            "artifactLocation": {"uri": uri(&source.path)},
            "region": {
                "startLine": start.line,
                "startColumn": start.column,
                "endLine": end.line,
                "endColumn": end.column,
            },
        },
    });
    if let Some(cell) = start.cell {
        location["logicalLocations"] = json!([{"name": format!("cell {cell}")}]);
    }
    json!({
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": level(finding.severity),
        "message": {"text": format!("{}. {}", finding.message, finding.help)},
        "locations": [location],
    })
}

fn notification(error: &FileError) -> Value {
    let mut physical = json!({"artifactLocation": {"uri": uri(&error.path)}});
    if let Some(place) = error.place {
        physical["region"] = json!({"startLine": place.line, "startColumn": place.column});
    }
    json!({
        "level": "error",
        "message": {"text": error.message},
        "locations": [{"physicalLocation": physical}],
    })
}

/// A path as a URI reference.
fn uri(path: &str) -> String {
    let path = path.replace('\\', "/");
    let mut out = if path.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte as char);
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::uri;

    #[test]
    fn paths_become_uri_references() {
        assert_eq!(uri("a b/c.py"), "a%20b/c.py");
        assert_eq!(uri("/x/é.py"), "file:///x/%C3%A9.py");
        assert_eq!(uri("-"), "-");
    }
}
