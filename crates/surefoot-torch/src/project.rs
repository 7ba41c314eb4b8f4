//! Many files at once.

use std::path::PathBuf;

use rayon::prelude::*;

use crate::check::check;
use crate::discover::Found;
use crate::finding::Finding;
use crate::model::mentions_mps;
use crate::requirements;
use crate::settings::Settings;
use crate::source::{FileError, Source};

/// A file with findings, and its text to show them in.
#[derive(Debug)]
pub struct Checked {
    /// The file.
    pub source: Source,
    /// In order of place.
    pub findings: Vec<Finding>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Files with findings, in the order given.
    pub checked: Vec<Checked>,
    /// Files that could not be checked.
    pub errors: Vec<FileError>,
    /// Files looked at.
    pub files: usize,
    /// Lines of Python in them.
    pub lines: usize,
    /// Whether one of them can run on MPS.
    pub uses_mps: bool,
}

impl Report {
    /// How many findings there are.
    pub fn findings(&self) -> usize {
        self.checked.iter().map(|checked| checked.findings.len()).sum()
    }

    /// Takes in the outcome of one source.
    pub fn add(&mut self, outcome: Result<Checked, FileError>) {
        self.files += 1;
        match outcome {
            Ok(checked) => {
                self.lines += checked.source.line_count();
                if !checked.findings.is_empty() {
                    self.checked.push(checked);
                }
            }
            Err(error) => self.errors.push(error),
        }
    }
}

/// Checks all that was found: the Python files and, if one of them can run on MPS, the version of
/// torch that the project asks for.
pub fn check_found(found: &Found, settings: &Settings) -> Report {
    let mut report = check_files(&found.files, settings);
    // Requirements that were asked for without any Python are taken as those of a Mac.
    if report.uses_mps || found.files.is_empty() {
        for path in &found.requirements {
            // A file of another kind than its name says, or none at all, says nothing about torch.
            let Ok(source) = Source::read(path) else { continue };
            let findings = requirements::check(&source, &settings.rules_for(path));
            if !findings.is_empty() {
                report.checked.push(Checked { source, findings });
            }
        }
    }
    report
}

/// Checks Python files on all cores.
pub fn check_files(files: &[PathBuf], settings: &Settings) -> Report {
    let mut report = Report::default();
    for outcome in map_files(files, |path| {
        let source = Source::read(path)?;
        let findings = check(&source, &settings.rules_for(path))?;
        let uses_mps = mentions_mps(&source.text);
        Ok((Checked { source, findings }, uses_mps))
    }) {
        report.uses_mps |= matches!(outcome, Ok((_, true)));
        report.add(outcome.map(|(checked, _)| checked));
    }
    report
}

/// Runs `work` on every file, in parallel, and keeps the order.
pub(crate) fn map_files<T: Send>(
    files: &[PathBuf],
    work: impl Fn(&PathBuf) -> T + Sync + Send,
) -> Vec<T> {
    // Deep trees need deep stacks; a pool of our own has them once, not for each file.
    const STACK: usize = 40 << 20;
    if files.len() < 2 {
        return files.iter().map(work).collect();
    }
    match rayon::ThreadPoolBuilder::new().stack_size(STACK).build() {
        Ok(pool) => pool.install(|| files.par_iter().map(&work).collect()),
        Err(_) => files.iter().map(work).collect(),
    }
}
