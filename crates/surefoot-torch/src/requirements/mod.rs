//! The version of torch that a project asks for, and what is known to be wrong with it on MPS.
//!
//! Files that are read: `requirements*.txt`, `requirements/*.txt` and `constraints*.txt`, `pyproject.toml`, the lock files of
//! uv and Poetry, and `environment.yml` of conda. Of a range of versions the newest counts, since that
//! is the one that will be installed. Requirements of another platform than macOS say nothing here.

mod known_bugs;
mod parse;

use std::path::Path;

use pep440_rs::{Version, VersionSpecifiers};
use ruff_text_size::TextRange;

use crate::finding::{Finding, Severity};
use crate::rules::CheckRule;
use crate::source::Source;
use known_bugs::{KnownBug, RELEASES};

pub(crate) static RULE: CheckRule = CheckRule {
    code: "SF033",
    name: "torch-with-mps-bugs",
    severity: Severity::Warning,
    summary: "the project runs on MPS and asks for a version of torch with known bugs there",
    fixable: false,
    page: include_str!("../rules/pages/SF033.md"),
    // It is about a project's requirements, not about its Python: see `check`.
    check: |_, _| {},
};

/// A requirement on torch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Requirement {
    /// Where it is written.
    pub(crate) range: TextRange,
    pub(crate) versions: VersionSpecifiers,
}

/// Whether a file of this name may hold requirements.
pub fn is_requirements_file(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    matches!(
        name,
        "pyproject.toml" | "uv.lock" | "poetry.lock" | "environment.yml" | "environment.yaml"
    ) || name.ends_with(".txt")
        && (name.starts_with("requirements")
            || name.starts_with("constraints")
            || path.parent().is_some_and(|folder| folder.ends_with("requirements")))
}

/// What is known to be wrong with the torch that a file asks for, for a project that runs on MPS. A
/// line with `# noqa` or `# noqa: SF033` is left alone.
pub fn check(source: &Source, rules: &[&'static CheckRule]) -> Vec<Finding> {
    if !rules.iter().any(|rule| rule.code == RULE.code) {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = parse::requirements(&source.path, &source.text)
        .iter()
        .filter(|requirement| !is_silenced(source, requirement.range))
        .filter_map(finding)
        .collect();
    findings.sort_by_key(|finding| finding.range.start());
    findings.dedup_by_key(|finding| finding.range);
    findings
}

fn is_silenced(source: &Source, range: TextRange) -> bool {
    let (line, _) = source.line_at(range.start());
    let comment = line.find('#').map_or("", |at| &line[at..]);
    match crate::noqa::parse(comment) {
        None => false,
        Some(None) => true,
        Some(Some(codes)) => codes.iter().any(|code| code.eq_ignore_ascii_case(RULE.code)),
    }
}

fn finding(requirement: &Requirement) -> Option<Finding> {
    let newest = newest(&requirement.versions)?;
    let bugs = known_bugs::of(newest);
    if bugs.is_empty() {
        return None;
    }
    let list: Vec<String> = bugs.iter().map(|bug| describe(bug)).collect();
    Some(Finding {
        code: RULE.code,
        severity: RULE.severity,
        range: requirement.range,
        message: format!("torch {newest} has known bugs on MPS: {}", list.join("; ")),
        help: match known_bugs::next_without(newest) {
            Some(better) => format!(
                "none is known here for torch {better}; whichever you take, compare a result with the CPU's"
            ),
            None => "compare results with those of the CPU".to_owned(),
        },
        fix: None,
    })
}

/// Whether a project asks for this release of torch or later: what the nearest `pyproject.toml` or
/// `requirements.txt` that names torch says, from a folder upwards to the repository's.
pub(crate) fn asks_for_at_least(release: &str, folder: &Path) -> bool {
    for folder in folder.ancestors() {
        for name in ["pyproject.toml", "requirements.txt"] {
            let Ok(text) = std::fs::read_to_string(folder.join(name)) else { continue };
            let found = parse::requirements(name, &text);
            if !found.is_empty() {
                return found.iter().all(|found| excludes_before(release, &found.versions));
            }
        }
        if folder.join(".git").exists() {
            break;
        }
    }
    false
}

fn excludes_before(release: &str, versions: &VersionSpecifiers) -> bool {
    let mut earlier = RELEASES.iter().take_while(|known| **known != release);
    !earlier.any(|known| known.parse::<Version>().is_ok_and(|known| versions.contains(&known)))
}

fn describe(bug: &KnownBug) -> String {
    format!("{} ({})", bug.what, bug.address())
}

/// The newest release that is allowed: what an installer takes.
fn newest(versions: &VersionSpecifiers) -> Option<&'static str> {
    let allowed = |release: &&'static str| {
        release.parse::<Version>().is_ok_and(|version| versions.contains(&version))
    };
    RELEASES.iter().copied().rev().find(allowed)
}
