//! A model folder, quantised once: `surefoot quantize`.
//!
//! The result is a model folder too, with everything that the source has beside its weights, and weights in
//! safetensors files. A quantised matrix `x.weight` is stored as `x.weight.Q4_0` (or another block format): bytes,
//! a row of blocks for each output, with blocks along the inputs. [`Checkpoint`](crate::folder::checkpoint::Checkpoint) finds it under its own name. So every
//! family that can be run can be quantised, the tokenizer stays as it was published, and the numbers are
//! those that `--weights` gives while loading. `config.json` says `quantization_config.quant_method: "surefoot"`,
//! so that programs that don't know the form refuse it instead of starting with random weights.
//!
//! The folder appears whole or not at all: it is made beside its place, as `NAME.partial`, and renamed. Files of weights in
//! it appear whole as well, so that a run that was interrupted goes on behind the last of them. `job.json`
//! says what it is being made from; one that is made from something else is refused.
//!
//! Memory: a few megabytes at a time, and a whole matrix in blocks where its rows are inputs (GPT-2).

mod copied;
mod job;
mod shard;

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ModelError;
use crate::folder::gguf;
use crate::run::opened::Opened;
use crate::stream::process;
use crate::weights::choice::WeightChoice;
use job::Job;
pub(crate) use shard::TIED_HEAD;
use shard::{Output, Shard};

/// Buffers for reading and rounding, and what the process grows by once it works.
const BUFFERS: u64 = 8 << 20;

/// Files of weights have about so many bytes.
const SHARD: u64 = 512 << 20;

/// How a folder is quantised.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// The form of the weights.
    pub choice: WeightChoice,
    /// The most memory that the whole process may use.
    pub memory: Option<u64>,
    /// The bytes of a file of weights, at most, where a single tensor is not larger.
    pub shard_bytes: u64,
}

impl QuantizeOptions {
    /// Weights in the form of `choice`.
    pub fn new(choice: WeightChoice) -> Self {
        Self { choice, memory: None, shard_bytes: SHARD }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quantized {
    /// The files, in the new folder.
    pub files: Vec<PathBuf>,
    /// Bytes of the source's tensors.
    pub stored_bytes: u64,
    /// Bytes of the new tensors.
    pub bytes: u64,
    /// Matrices that were quantised.
    pub quantized: usize,
    /// Matrices that stay as they were: their rows are no whole blocks, or they have no more bits.
    pub left: usize,
    /// Bytes that an earlier run, which was interrupted, had written.
    pub resumed_bytes: u64,
}

/// Quantises the model folder `source` into the new folder `out`. `progress` is told the bytes that are written and
/// those that will be.
pub fn quantize(
    source: &Path,
    out: &Path,
    options: &QuantizeOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Quantized, ModelError> {
    let choice = options.choice;
    if gguf::is_gguf(source) {
        return Err(ModelError::file(
            source,
            "is a GGUF file, and only model folders can be quantised into folders; --weights quantises it while it is loaded",
        ));
    }
    if out.exists() {
        return Err(ModelError::file(out, "exists already; name a folder that does not"));
    }
    let opened = Opened::new(source)?.with_weights(choice);
    if opened.binding.matrices.iter().any(|matrix| matrix.stored.is_foreign()) {
        return Err(ModelError::file(
            source,
            "has weights that another program quantised; take the model's original folder, or run this one as it is",
        ));
    }
    let outputs = shard::outputs(&opened)?;
    let needed =
        process::peak_bytes() + BUFFERS + outputs.iter().map(Output::memory).max().unwrap_or(0);
    if let Some(allowed) = options.memory.filter(|allowed| *allowed < needed) {
        return Err(ModelError::Memory { needed, allowed });
    }
    let shards = shard::divided(outputs, options.shard_bytes);
    let all: u64 = shards.iter().map(Shard::bytes).sum();
    let partial = Job::of(source, options, &opened)?.begin(out)?;
    let (mut done, mut resumed) = (0, 0);
    for shard in &shards {
        if shard.is_in(&partial) {
            resumed += shard.bytes();
            done += shard.bytes();
            progress(done, all);
        } else {
            shard.write(&partial, |bytes| {
                done += bytes;
                progress(done, all);
            })?;
        }
    }
    copied::copy(source, &partial, choice, &shards)?;
    job::finish(&partial, out)?;
    let mut files: Vec<PathBuf> = fs::read_dir(out)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error| ModelError::file(out, format!("can't be read: {error}")))?;
    files.sort();
    let rounded = opened.binding.matrices.iter().filter(|matrix| matrix.is_rounded()).count();
    Ok(Quantized {
        files,
        stored_bytes: opened.file_bytes,
        bytes: all,
        quantized: rounded,
        left: opened.binding.matrices.len() - rounded,
        resumed_bytes: resumed,
    })
}
