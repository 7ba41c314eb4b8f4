//! One file: parse, walk, ask the rules, leave out what is silenced.

use crate::finding::Finding;
use crate::model::Facts;
use crate::noqa::Silenced;
use crate::rules::{CheckRule, Findings};
use crate::source::{FileError, Source};
use crate::syntax;

/// Enough stack for a tree of the deepest nesting that is allowed.
const STACK: usize = 16 << 20;

/// The findings of these rules in one source, in order of place.
pub fn check(source: &Source, rules: &[&'static CheckRule]) -> Result<Vec<Finding>, FileError> {
    stacker::maybe_grow(STACK, 2 * STACK, || check_here(source, rules))
}

fn check_here(source: &Source, rules: &[&'static CheckRule]) -> Result<Vec<Finding>, FileError> {
    let parsed = syntax::parse(source)?;
    if !speaks_of_torch(&source.text) {
        return Ok(Vec::new());
    }
    let facts = Facts::gather(&source.text, parsed.syntax());
    let mut findings = Findings::default();
    for rule in rules {
        rule.apply(&facts, &mut findings);
    }
    let silenced = Silenced::read(source, parsed.tokens());
    let mut findings = findings.into_list();
    findings.retain(|finding| !silenced.silences(source, finding));
    findings.sort_by_key(|finding| (finding.range.start(), finding.code));
    findings.dedup_by(|a, b| a.code == b.code && a.range == b.range);
    Ok(findings)
}

/// A file that never says `torch` can't have trouble with it.
pub(crate) fn speaks_of_torch(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), b"torch").is_some()
        || memchr::memmem::find(text.as_bytes(), b"TORCH").is_some()
}
