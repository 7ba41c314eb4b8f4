//! Many files at once.

use std::path::{Path, PathBuf};

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
pub struct CheckReport {
    /// Files with findings, in the order given.
    pub checked: Vec<Checked>,
    /// Files that could not be checked.
    pub errors: Vec<FileError>,
    /// Files looked at.
    pub files: usize,
    /// Lines of Python in them.
    pub lines: usize,
}

impl CheckReport {
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

/// Checks all that was found: the Python files, and the version of torch that those of them that can
/// run on MPS are asked to run with.
pub fn check_found(found: &Found, settings: &Settings) -> CheckReport {
    let (mut report, on_mps) = check_each(&found.files, settings);
    for path in &found.requirements {
        // Requirements that were asked for without any Python are taken as those of a Mac.
        let folder = folder_of(path);
        if !found.files.is_empty() && !on_mps.iter().any(|file| file.starts_with(folder)) {
            continue;
        }
        // A file of another kind than its name says, or none at all, says nothing about torch.
        let Ok(source) = Source::read(path) else { continue };
        let findings = requirements::check(&source, &settings.rules_for(path));
        if !findings.is_empty() {
            report.checked.push(Checked { source, findings });
        }
    }
    report
}

/// The folder whose code a file of requirements is for: the one it is in, or the one above a folder
/// that holds nothing but requirements.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or(Path::new(""));
    match folder.file_name() {
        Some(name) if name == "requirements" => folder.parent().unwrap_or(Path::new("")),
        _ => folder,
    }
}

/// Checks Python files on all cores.
pub fn check_files(files: &[PathBuf], settings: &Settings) -> CheckReport {
    check_each(files, settings).0
}

/// The report, and the files that can run on MPS.
fn check_each<'f>(files: &'f [PathBuf], settings: &Settings) -> (CheckReport, Vec<&'f PathBuf>) {
    let mut report = CheckReport::default();
    let mut on_mps = Vec::new();
    let outcomes = map_files(files, |path| {
        let source = Source::read(path)?;
        let findings = check(&source, &settings.rules_for(path))?;
        let uses_mps = mentions_mps(&source.text);
        Ok((Checked { source, findings }, uses_mps))
    });
    for (path, outcome) in files.iter().zip(outcomes) {
        if matches!(outcome, Ok((_, true))) {
            on_mps.push(path);
        }
        report.add(outcome.map(|(checked, _)| checked));
    }
    (report, on_mps)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::discover;

    #[test]
    fn requirements_count_for_the_code_beside_and_below_them() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [
            ("mac/train.py", "import torch\nd = torch.device('mps')\n"),
            ("mac/requirements.txt", "torch==2.8.0\n"),
            ("mac/requirements/base.txt", "torch==2.8.0\n"),
            ("mac/requirements/requirements-dev.txt", "torch==2.8.0\n"),
            ("other/train.py", "import torch\n"),
            ("other/requirements.txt", "torch==2.8.0\n"),
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let settings = Settings::defaults(folder.path());
        let found = discover(&[folder.path().to_owned()], &settings);
        let report = check_found(&found, &settings);
        let named: Vec<&Path> = report
            .checked
            .iter()
            .map(|checked| {
                Path::new(&checked.source.path).strip_prefix(folder.path()).expect("inside")
            })
            .collect();
        let expected = [
            "mac/requirements/base.txt",
            "mac/requirements/requirements-dev.txt",
            "mac/requirements.txt",
        ];
        assert_eq!(named, expected.map(Path::new));
    }
}
