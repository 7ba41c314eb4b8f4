//! The weights of a folder: one safetensors file or shards with an index, with every tensor's
//! place known and checked.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use surefoot_quant::BlockFormat;

use super::foreign::{self, Foreign};
use super::gguf::{self, GgufModel};
use super::header;
use super::index;
use super::mapped::WeightFile;
use super::quantization::Scheme;
use super::settings::Settings;
use crate::error::ModelError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// More than any published index needs.
const MAX_INDEX: u64 = 16 << 20;

/// Bytes of a tensor that are compared at once.
const COMPARED_AT_ONCE: usize = 4 << 20;

/// One tensor's place in its file.
#[derive(Clone, Debug)]
pub struct Stored {
    pub(crate) file: Arc<WeightFile>,
    /// The name in the file.
    pub name: String,
    /// The name of its dtype.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    pub(crate) range: Range<usize>,
    /// The dtype and shape in its file's header, where blocks are stored as bytes.
    pub(super) packed_from: Option<Box<(String, Vec<usize>)>>,
    /// Another program's quantisation that it is read through; `range` then has its numbers alone.
    pub(super) foreign: Option<Arc<Foreign>>,
}

impl Stored {
    /// How its numbers are stored, if weights can be stored so.
    pub fn format(&self) -> Result<BlockFormat, ModelError> {
        let known = BlockFormat::named(&self.dtype);
        known.ok_or_else(|| {
            self.problem(format!("has the dtype {}; weights must be F32, F16 or BF16", self.dtype))
        })
    }

    /// Whether it is read through another program's quantisation, and is not in its file as [`Self::format`] says.
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Its bytes in files.
    pub fn file_bytes(&self) -> u64 {
        let extra = self.foreign.as_ref().map_or(0, |foreign| foreign.extra_bytes());
        (self.range.len() + extra) as u64
    }

    /// The part of its file that holds some of its rows, or more of it.
    pub(crate) fn range_of_rows(&self, rows: &Range<usize>) -> Range<usize> {
        if let Some(foreign) = &self.foreign {
            return foreign.range(self, rows);
        }
        let row = self.range.len() / self.shape.first().copied().unwrap_or(1).max(1);
        self.range.start + rows.start * row..self.range.start + rows.end * row
    }

    /// Some rows in the format that it has, however it is stored. `bytes` must be as long as they are.
    pub(crate) fn read_rows(&self, rows: Range<usize>, bytes: &mut [u8]) -> Result<(), ModelError> {
        match &self.foreign {
            Some(foreign) => foreign.read(self, self.format()?, rows, bytes),
            None => self.file.read_at(self.range_of_rows(&rows).start as u64, bytes),
        }
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Dtype and shape as its file's header has them.
    pub(crate) fn raw_form(&self) -> (String, Vec<usize>) {
        match &self.packed_from {
            Some(form) => (**form).clone(),
            None => (self.dtype.clone(), self.shape.clone()),
        }
    }

    /// A tensor of bytes that are rows of blocks in `format`, as it is meant.
    fn unpacked(mut self, format: BlockFormat) -> Result<Self, ModelError> {
        let [rows, bytes] = self.shape[..] else {
            return Err(self.problem(format!("must be rows of {format}, but is {:?}", self.shape)));
        };
        let blocks = bytes / format.block_bytes();
        let cols = blocks.checked_mul(format.block_len());
        let (Some(cols), true) = (cols, self.dtype == "U8" && bytes % format.block_bytes() == 0)
        else {
            return Err(
                self.problem(format!("is {}, which are no blocks of {format}", self.form()))
            );
        };
        let form = (std::mem::replace(&mut self.dtype, format.name().to_owned()), self.shape);
        self.shape = vec![rows, cols];
        self.packed_from = Some(Box::new(form));
        Ok(self)
    }

    /// Its dtype and shape, for people.
    pub fn form(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }

    /// How many rows (of the first dimension) have other bytes than those of `other`, which must
    /// have the same form.
    pub fn differing_rows(&self, other: &Self) -> Result<usize, ModelError> {
        let rows = self.shape.first().copied().unwrap_or(1).max(1);
        if self.is_foreign() || other.is_foreign() {
            return self.differing_read_rows(other, rows);
        }
        let (length, row) = (self.range.len(), (self.range.len() / rows).max(1));
        // Whole rows, so that the memory this takes is bounded by one row or a few megabytes.
        let step = (COMPARED_AT_ONCE / row).max(1) * row;
        let (mut ours, mut theirs) = (vec![0; step.min(length)], vec![0; step.min(length)]);
        let mut count = 0;
        for start in (0..length).step_by(step) {
            let size = step.min(length - start);
            self.file.read_at((self.range.start + start) as u64, &mut ours[..size])?;
            other.file.read_at((other.range.start + start) as u64, &mut theirs[..size])?;
            if ours[..size] != theirs[..size] {
                let pairs = ours[..size].chunks(row).zip(theirs[..size].chunks(row));
                count += pairs.filter(|(ours, theirs)| ours != theirs).count();
            }
        }
        Ok(count)
    }

    /// [`Self::differing_rows`] of matrices that are not in their files as they are read.
    fn differing_read_rows(&self, other: &Self, rows: usize) -> Result<usize, ModelError> {
        let format = self.format()?;
        let cols = self.shape.get(1).copied().unwrap_or(1);
        let row = cols / format.block_len() * format.block_bytes();
        let step = (COMPARED_AT_ONCE / row.max(1)).max(1);
        let (mut ours, mut theirs) = (vec![0; step * row], vec![0; step * row]);
        let mut count = 0;
        for from in (0..rows).step_by(step) {
            let some = from..(from + step).min(rows);
            let size = some.len() * row;
            self.read_rows(some.clone(), &mut ours[..size])?;
            other.read_rows(some, &mut theirs[..size])?;
            let pairs = ours[..size].chunks(row.max(1)).zip(theirs[..size].chunks(row.max(1)));
            count += pairs.filter(|(ours, theirs)| ours != theirs).count();
        }
        Ok(count)
    }

    pub(crate) fn problem(&self, problem: impl Into<String>) -> ModelError {
        ModelError::tensor(self.file.path(), &self.name, problem)
    }
}

/// All tensors of a folder.
#[derive(Debug)]
pub struct Checkpoint {
    /// The file to name when a tensor is missing.
    pub(crate) listing: std::path::PathBuf,
    pub(crate) tensors: BTreeMap<String, Stored>,
}

impl Checkpoint {
    /// Opens the weights of a model folder or GGUF file and checks their headers. No weight is read.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        if gguf::is_gguf(folder) {
            return Ok(GgufModel::open(folder)?.checkpoint);
        }
        if folder.join(SINGLE).exists() {
            let path = index::inside(folder, SINGLE)?;
            let tensors = adopted(folder, unpacked(shard(&path)?)?)?;
            return Ok(Self { tensors, listing: path });
        }
        if !folder.join(INDEX).exists() {
            return Err(ModelError::file(folder, format!("has neither {SINGLE} nor {INDEX}")));
        }
        let listing = index::inside(folder, INDEX)?;
        let weight_map = index::parse(&listing, &super::read_bounded(&listing, MAX_INDEX)?)?;
        let mut shards = BTreeMap::new();
        for name in weight_map.values() {
            if !shards.contains_key(name) {
                shards.insert(name.clone(), shard(&index::inside(folder, name)?)?);
            }
        }
        let mut tensors = BTreeMap::new();
        for (tensor, file) in &weight_map {
            let stored = shards.get_mut(file).and_then(|shard| shard.remove(tensor));
            let stored = stored.ok_or_else(|| {
                ModelError::tensor(
                    &listing,
                    tensor,
                    format!("is said to be in '{file}', but it isn't there"),
                )
            })?;
            tensors.insert(tensor.clone(), stored);
        }
        if let Some(stray) = shards.values().flat_map(BTreeMap::values).next() {
            return Err(stray.problem("is not in the index"));
        }
        Ok(Self { listing, tensors: adopted(folder, unpacked(tensors)?)? })
    }

    /// All tensors with their names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Stored)> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), stored))
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// The bytes of all tensors as they are stored.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(Stored::file_bytes).sum()
    }
}

/// Matrices that `surefoot quantize` wrote, under their own names: `x.weight.Q4_0` is `x.weight` in blocks.
fn unpacked(tensors: BTreeMap<String, Stored>) -> Result<BTreeMap<String, Stored>, ModelError> {
    let mut named = BTreeMap::new();
    for (name, stored) in tensors {
        let packed = name.rsplit_once('.').and_then(|(own, ending)| {
            let format = BlockFormat::named(ending)?;
            format.is_quantized().then_some((own, format))
        });
        let (name, stored) = match packed {
            Some((own, format)) => (own.to_owned(), stored.unpacked(format)?),
            None => (name, stored),
        };
        if let Some(first) = named.insert(name, stored) {
            return Err(first.problem("is there twice, once in blocks"));
        }
    }
    Ok(named)
}

/// Matrices that other programs quantised, under their own names, as the configuration says how.
fn adopted(
    folder: &Path,
    tensors: BTreeMap<String, Stored>,
) -> Result<BTreeMap<String, Stored>, ModelError> {
    if !foreign::is_quantized(&tensors) {
        return Ok(tensors);
    }
    match Scheme::read(&Settings::open(&folder.join("config.json"))?)? {
        Some(scheme) => foreign::adopt(tensors, scheme),
        // What can't be used is refused with its name when it is bound.
        None => Ok(tensors),
    }
}

/// The tensors of one safetensors file.
pub(crate) fn shard(path: &Path) -> Result<BTreeMap<String, Stored>, ModelError> {
    let file = Arc::new(WeightFile::open(path)?);
    let entries = header::read(&file)?;
    Ok(entries
        .into_iter()
        .map(|(name, entry)| {
            let stored = Stored {
                file: Arc::clone(&file),
                name: name.clone(),
                dtype: entry.dtype,
                shape: entry.shape,
                range: entry.range,
                packed_from: None,
                foreign: None,
            };
            (name, stored)
        })
        .collect())
}
