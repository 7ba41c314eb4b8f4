//! Every rule against code that has the trouble and idiomatic code that doesn't.
//!
//! `cases/SF001/bad_*.py` marks each line with a finding by `# expect: SF001`; the rule must report
//! exactly those lines. `cases/SF001/good_*.py` must be clean under every rule. A case that is a folder
//! holds one file of requirements, and code that can run on MPS.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use surefoot_torch::check::check;
use surefoot_torch::requirements;
use surefoot_torch::rules::{self, CheckRule};
use surefoot_torch::source::Source;

fn cases(code: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(code);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).expect(code).map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Reads a case: a Python file, or the file of requirements in a folder.
fn read(path: &Path) -> Source {
    if path.is_file() {
        return Source::read(path).expect("a case");
    }
    let mut inside = fs::read_dir(path).expect("a folder").map(|file| file.expect("a file").path());
    let file = inside.find(|file| requirements::is_requirements_file(file));
    Source::read(&file.expect("a file of requirements")).expect("a case")
}

fn lines(source: &Source, rules: &[&'static CheckRule]) -> BTreeSet<(usize, String)> {
    let findings = match source.path.ends_with(".py") {
        true => check(source, rules).expect("a case parses"),
        false => requirements::check(source, rules),
    };
    findings
        .iter()
        .map(|finding| (source.place(finding.range.start()).line, finding.code.to_owned()))
        .collect()
}

fn expected(source: &Source, code: &str) -> BTreeSet<(usize, String)> {
    let mark = format!("# expect: {code}");
    let marked = source.text.lines().enumerate().filter(|(_, line)| line.ends_with(&mark));
    marked.map(|(row, _)| (row + 1, code.to_owned())).collect()
}

#[test]
fn bad_cases_are_found_on_the_marked_lines_and_nowhere_else() {
    let mut failures = Vec::new();
    for rule in rules::ALL {
        for path in cases(rule.code) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if !name.starts_with("bad_") {
                continue;
            }
            let source = read(&path);
            let want = expected(&source, rule.code);
            assert!(!want.is_empty(), "{}/{name} expects nothing", rule.code);
            let got = lines(&source, &[rule]);
            if got != want {
                failures.push(format!("{}/{name}: want {want:?}, got {got:?}", rule.code));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn good_cases_are_clean_under_every_rule() {
    let mut failures = Vec::new();
    for rule in rules::ALL {
        for path in cases(rule.code) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if !name.starts_with("good_") {
                continue;
            }
            let source = read(&path);
            let got = lines(&source, &rules::ALL);
            if !got.is_empty() {
                failures.push(format!("{}/{name}: {got:?}", rule.code));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_rule_has_three_cases_of_each() {
    for rule in rules::ALL {
        let count = |kind: &str| {
            let starts = |path: &&PathBuf| {
                path.file_name().expect("a name").to_string_lossy().starts_with(kind)
            };
            cases(rule.code).iter().filter(starts).count()
        };
        assert!(count("bad_") >= 3, "{} has {} bad cases", rule.code, count("bad_"));
        assert!(count("good_") >= 3, "{} has {} good cases", rule.code, count("good_"));
    }
}

/// The page's good example must not have the trouble that the page is about.
#[test]
fn good_examples_of_the_pages_are_good() {
    for rule in rules::ALL {
        let good = rule.page.split("## Good").nth(1).expect(rule.code);
        let code = good.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
        let code = code.expect(rule.code);
        let text = format!(
            "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n{code}"
        );
        let text = if rule.code == "SF026" { code.to_owned() } else { text };
        let source = Source::from_bytes("page.py".to_owned(), text.into_bytes()).expect("UTF-8");
        assert_eq!(lines(&source, &[rule]), BTreeSet::new(), "{}", rule.code);
    }
}

/// The table in the documents lists the rules as they are.
#[test]
fn the_documents_list_every_rule() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/check.md");
    let text = fs::read_to_string(path).expect("docs/check.md");
    for rule in rules::ALL {
        let (severity, fix) = (rule.severity.word(), if rule.fixable { "yes" } else { "" });
        let row =
            format!("| {} | {} | {severity} | {fix} | {} |", rule.code, rule.name, rule.summary);
        assert!(text.contains(&row), "docs/check.md lacks: {row}");
    }
}
