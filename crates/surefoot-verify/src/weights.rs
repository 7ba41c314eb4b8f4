//! Whether two models have the same files, and which tensors differ where both are folders here.
//!
//! A verdict is about behaviour on the challenges: a change that no challenge meets, as in the
//! embedding of one rare token, is not part of it. The files show every change.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use surefoot_models::folder::checkpoint::Checkpoint;

use crate::error::VerifyError;
use crate::identity::{FileDigest, Identity};

/// The files of two models, compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileComparison {
    /// Whether all files are the same, byte by byte.
    pub same: bool,
    /// The names of files that differ or that one model lacks.
    pub differing_files: Vec<String>,
    /// Tensors that differ; none where only digests are known.
    pub differing_tensors: Option<Vec<TensorDifference>>,
}

/// A tensor that is not the same in two models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorDifference {
    /// Its name.
    pub name: String,
    /// How it differs.
    #[serde(flatten)]
    pub difference: Difference,
}

/// How a tensor differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "difference")]
#[non_exhaustive]
pub enum Difference {
    /// Only the reference has it.
    OnlyInReference,
    /// Only the candidate has it.
    OnlyInCandidate,
    /// Its shape or dtype is another.
    Form {
        /// Dtype and shape in the reference.
        reference: String,
        /// Dtype and shape in the candidate.
        candidate: String,
    },
    /// Some of its rows are others.
    Numbers {
        /// Rows that differ.
        rows: usize,
        /// All rows.
        of_rows: usize,
    },
}

impl std::fmt::Display for TensorDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.name;
        match &self.difference {
            Difference::OnlyInReference => write!(f, "{name}: only in the reference"),
            Difference::OnlyInCandidate => write!(f, "{name}: only in the candidate"),
            Difference::Form { reference, candidate } => {
                write!(f, "{name}: {reference} in the reference, {candidate} in the candidate")
            }
            Difference::Numbers { rows, of_rows } => {
                write!(f, "{name}: {rows} of {of_rows} rows differ")
            }
        }
    }
}

/// Compares the digests of all files, and the tensors if both folders are given and the files
/// differ.
pub fn compare_files(
    reference: &Identity,
    candidate: &Identity,
    folders: Option<(&Path, &Path)>,
) -> Result<FileComparison, VerifyError> {
    let digests = |files: &[FileDigest]| -> BTreeSet<(String, String)> {
        files.iter().map(|file| (file.name.clone(), file.blake3.clone())).collect()
    };
    let (ours, theirs) = (digests(&reference.files), digests(&candidate.files));
    let differing: BTreeSet<String> =
        ours.symmetric_difference(&theirs).map(|(name, _)| name.clone()).collect();
    let same = differing.is_empty();
    let differing_tensors = match folders {
        Some((one, other)) if !same => Some(differing_tensors(one, other)?),
        Some(_) => Some(Vec::new()),
        None => None,
    };
    Ok(FileComparison { same, differing_files: differing.into_iter().collect(), differing_tensors })
}

/// The tensors of two model folders that differ, by name.
pub fn differing_tensors(
    reference: &Path,
    candidate: &Path,
) -> Result<Vec<TensorDifference>, VerifyError> {
    let (ours, theirs) = (Checkpoint::open(reference)?, Checkpoint::open(candidate)?);
    let mut found = Vec::new();
    for (name, one) in ours.tensors() {
        let difference = match theirs.tensor(name) {
            None => Some(Difference::OnlyInReference),
            Some(other) if one.form() != other.form() => {
                Some(Difference::Form { reference: one.form(), candidate: other.form() })
            }
            Some(other) => {
                let of_rows = one.shape.first().copied().unwrap_or(1).max(1);
                let rows = one.differing_rows(other)?;
                (rows > 0).then_some(Difference::Numbers { rows, of_rows })
            }
        };
        found.extend(
            difference.map(|it| TensorDifference { name: name.to_owned(), difference: it }),
        );
    }
    for (name, _) in theirs.tensors().filter(|(name, _)| ours.tensor(name).is_none()) {
        found.push(TensorDifference {
            name: name.to_owned(),
            difference: Difference::OnlyInCandidate,
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}
