//! The ordered list of what to change: first what decides where things are, then what depends on it.

use std::fmt::Write;

use crate::finding::Finding;
use crate::project::CheckReport;
use crate::report::count;
use crate::source::Source;

/// The stages, in order, with the rules that belong to each.
const STAGES: [(&str, &[&str]); 7] = [
    ("Choose the device once", &["SF005", "SF006", "SF026", "SF033", "SF034"]),
    (
        "Put everything where it belongs",
        &["SF001", "SF002", "SF003", "SF004", "SF010", "SF024", "SF025"],
    ),
    ("Feed it", &["SF007", "SF008", "SF009"]),
    ("Choose the precision by device", &["SF017", "SF018", "SF019", "SF020", "SF031"]),
    ("Make the training and evaluation loops right", &["SF011", "SF012", "SF015", "SF016"]),
    (
        "Keep memory and threads in hand",
        &["SF013", "SF014", "SF021", "SF022", "SF023", "SF028", "SF030", "SF032"],
    ),
    ("Make it fast", &["SF027", "SF029"]),
];

pub(super) fn render(report: &CheckReport) -> String {
    let mut out = String::new();
    let mut number = 0;
    for (title, codes) in STAGES {
        let found: Vec<(&Source, &Finding)> = report
            .checked
            .iter()
            .flat_map(|checked| checked.findings.iter().map(|finding| (&checked.source, finding)))
            .filter(|(_, finding)| codes.contains(&finding.code))
            .collect();
        if found.is_empty() {
            continue;
        }
        number += 1;
        // Writing to a string can't fail.
        let _ = writeln!(out, "### {number}. {title} ({})\n", count(found.len(), "finding"));
        for (source, finding) in found {
            let place = source.place(finding.range.start());
            let fix = if finding.fix.is_some() { " (`--fix` does it)" } else { "" };
            let _ = writeln!(
                out,
                "- [ ] {}:{place} **{}**: {}; {}{fix}",
                source.path, finding.code, finding.message, finding.help
            );
        }
        out.push('\n');
    }
    for error in &report.errors {
        let place = error.place.map(|place| format!(":{place}")).unwrap_or_default();
        let _ = writeln!(out, "- [ ] {}{place}: {}", error.path, error.message);
    }
    if out.is_empty() {
        out.push_str("Nothing: no trouble was found.\n");
    }
    if !report.errors.is_empty() || number == 0 {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::STAGES;
    use crate::rules;

    #[test]
    fn every_rule_belongs_to_exactly_one_stage() {
        for rule in rules::ALL {
            let stages = STAGES.iter().filter(|(_, codes)| codes.contains(&rule.code)).count();
            assert_eq!(stages, 1, "{}", rule.code);
        }
    }
}
