//! Merging an adapter into its model's weights.
//!
//! The weights are written in the dtypes of the model's files, file by file with the same names; everything else in the folder
//! is copied. A weight is computed in f32 and rounded once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::{Dtype, View};
use surefoot_quant::BlockFormat;

use super::{Adapter, AdapterPair};
use crate::error::ModelError;
use crate::folder::checkpoint::{Checkpoint, Stored};
use crate::folder::gguf;
use crate::run::opened::Opened;
use crate::weights::convert;
use crate::weights::format::bytes_of;

impl AdapterPair {
    /// Adds the product of the pair to a weight, in the layout of its file.
    pub fn add_to(&self, numbers: &mut [f32]) {
        let (inputs, outputs, rank) = (self.target.inputs, self.target.outputs, self.rank);
        let mut row = vec![0.0_f32; inputs];
        for output in 0..outputs {
            let b = &self.b[output * rank..(output + 1) * rank];
            row.fill(0.0);
            for (factor, a) in b.iter().zip(self.a.chunks_exact(inputs)) {
                for (sum, a) in row.iter_mut().zip(a) {
                    *sum += factor * a;
                }
            }
            for (input, added) in row.iter().enumerate() {
                let at = match self.target.fan_in_fan_out {
                    true => input * outputs + output,
                    false => output * inputs + input,
                };
                numbers[at] += (self.scale as f32) * added;
            }
        }
    }
}

/// A tensor of the merged model, read and computed when it is written.
struct Merged<'a> {
    stored: &'a Stored,
    dtype: Dtype,
    format: BlockFormat,
    pair: Option<&'a AdapterPair>,
    /// The first thing that went wrong while a tensor was read.
    failed: &'a Mutex<Option<ModelError>>,
}

impl Merged<'_> {
    fn bytes(&self) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; self.stored.range.len()];
        self.stored.file.read_at(self.stored.range.start as u64, &mut bytes)?;
        let Some(pair) = self.pair else { return Ok(bytes) };
        let count: usize = self.stored.shape.iter().product();
        let mut wide = vec![0; count * 4];
        convert::convert(self.format, &bytes, BlockFormat::F32, &mut wide);
        let chunks = wide.as_chunks_mut::<4>().0;
        let mut numbers: Vec<f32> = chunks.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        pair.add_to(&mut numbers);
        for (bytes, number) in chunks.iter_mut().zip(numbers) {
            *bytes = number.to_ne_bytes();
        }
        convert::convert(BlockFormat::F32, &wide, self.format, &mut bytes);
        Ok(bytes)
    }
}

impl View for Merged<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.stored.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // The file that is being written is thrown away then.
        Cow::Owned(self.bytes().unwrap_or_else(|error| {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            vec![0; self.data_len()]
        }))
    }

    fn data_len(&self) -> usize {
        bytes_of(self.format, self.stored.shape.iter().product())
    }
}

/// Writes `model` with `adapter` in its weights into the folder `into`, which must not exist or be empty; gives the
/// files that were written. The folder is there whole or not at all.
pub fn merge(model: &Opened, adapter: &Adapter, into: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let unwritable =
        |error: std::io::Error| ModelError::file(into, format!("can't be written: {error}"));
    match std::fs::read_dir(into).map(|mut entries| entries.next().is_none()) {
        Ok(true) => std::fs::remove_dir(into).map_err(unwritable)?,
        Ok(false) => return Err(ModelError::file(into, "exists and is not empty")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(unwritable(error)),
    }
    let mut name = into.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = into.with_file_name(name);
    std::fs::create_dir_all(&part).map_err(unwritable)?;
    let written = write(model, adapter, &part)
        .and_then(|files| std::fs::rename(&part, into).map(|()| files).map_err(unwritable));
    match written {
        Ok(files) => {
            Ok(files.iter().map(|file| into.join(file.file_name().unwrap_or_default())).collect())
        }
        Err(error) => {
            let _removed = std::fs::remove_dir_all(&part);
            Err(error)
        }
    }
}

fn write(model: &Opened, adapter: &Adapter, into: &Path) -> Result<Vec<PathBuf>, ModelError> {
    if gguf::is_gguf(&model.folder) {
        let problem = "is a GGUF file; adapters can be merged into model folders only";
        return Err(ModelError::file(&model.folder, problem));
    }
    let checkpoint = Checkpoint::open(&model.folder)?;
    let pairs: BTreeMap<&str, &AdapterPair> =
        adapter.pairs.iter().map(|pair| (pair.target.tensor.as_str(), pair)).collect();
    let tied = &model.binding.tokens.name;
    if let Some(pair) = pairs.get(tied.as_str()) {
        let problem = format!(
            "adapts {}, which shares its weight with the embedding: merged, the embedding would change too",
            pair.target.module
        );
        return Err(ModelError::file(adapter.folder.as_deref().unwrap_or(into), problem));
    }
    let failed = Mutex::default();
    let mut by_file: BTreeMap<PathBuf, Vec<(&str, Merged<'_>)>> = BTreeMap::new();
    for (name, stored) in checkpoint.tensors() {
        // Whole numbers, such as those of positions, which old checkpoints carry and nothing needs.
        let Ok(format) = stored.format() else { continue };
        let dtype = match format {
            BlockFormat::F32 => Dtype::F32,
            BlockFormat::F16 => Dtype::F16,
            BlockFormat::BF16 => Dtype::BF16,
            other => return Err(stored.problem(format!("is {other}, which can't be written"))),
        };
        let pair = pairs.get(name).copied();
        let merged = Merged { stored, dtype, format, pair, failed: &failed };
        by_file.entry(stored.file.path().to_owned()).or_default().push((name, merged));
    }
    let mut written = copy_the_rest(&model.folder, into)?;
    for (source, tensors) in by_file {
        let path = into.join(source.file_name().unwrap_or_default());
        let format = [("format".to_owned(), "pt".to_owned())].into();
        safetensors::serialize_to_file(tensors, Some(format), &path)
            .map_err(|error| ModelError::file(&path, format!("can't be written: {error}")))?;
        written.push(path);
    }
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(written),
    }
}

/// Copies the small files of a model folder: its configuration, tokenizer and template.
fn copy_the_rest(from: &Path, into: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let unreadable = |error: std::io::Error| ModelError::file(from, error.to_string());
    let mut copied = Vec::new();
    for entry in std::fs::read_dir(from).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let kept = path
            .extension()
            .is_some_and(|kind| ["json", "jinja", "txt", "model"].iter().any(|kept| kind == *kept));
        if !kept || !path.is_file() {
            continue;
        }
        let target = into.join(path.file_name().unwrap_or_default());
        std::fs::copy(&path, &target)
            .map_err(|error| ModelError::file(&target, format!("can't be written: {error}")))?;
        copied.push(target);
    }
    copied.sort();
    Ok(copied)
}
