//! Results as safetensors files, written beside their place and then renamed, so that a file
//! that is there is whole.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, View};

use crate::error::ModelError;
use crate::run::model::Rows;

struct Tensor<'a> {
    shape: [usize; 2],
    rows: &'a Rows,
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.rows.numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        self.rows.numbers.len() * 4
    }
}

/// Writes named rows of f32 to `path`.
pub fn save(path: &Path, tensors: &[(String, &Rows)]) -> Result<(), ModelError> {
    let unwritable = |error: &dyn std::fmt::Display| {
        ModelError::file(path, format!("can't be written: {error}"))
    };
    let views = tensors.iter().map(|(name, rows)| {
        let shape = [rows.numbers.len() / rows.cols.max(1), rows.cols];
        (name.clone(), Tensor { shape, rows })
    });
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part: PathBuf = path.with_file_name(name);
    let written = safetensors::serialize_to_file(views, None, &part)
        .map_err(|error| unwritable(&error))
        .and_then(|()| std::fs::rename(&part, path).map_err(|error| unwritable(&error)));
    if written.is_err() {
        // What is left of it is of no use; that it may not be there is fine.
        let _ = std::fs::remove_file(&part);
    }
    written
}
