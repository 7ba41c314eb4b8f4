//! Safetensors files of quantised weights, written as their tensors are made.
//!
//! The `safetensors` crate writes tensors that are whole in memory; these may be larger than the memory that is
//! allowed, so the header, which is all there is to the format, is written here.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};
use surefoot_quant::BlockFormat;

use crate::arch::blueprint::Layout;
use crate::error::ModelError;
use crate::folder::checkpoint::{Checkpoint, Stored};
use crate::run::opened::Opened;
use crate::weights::binding::Matrix;
use crate::weights::format::bytes_of;
use crate::weights::piece::Piece;

/// Bytes that are read and written at a time.
const STEP: usize = 1 << 20;
/// A quantised head of a model that uses its token table for it.
pub(crate) const TIED_HEAD: &str = "lm_head.weight";

/// A tensor to be written.
pub(super) struct Output {
    /// Its name in the new files.
    name: String,
    source: Source,
}

enum Source {
    /// As it is.
    Copy(Stored),
    /// In the blocks of the matrix's target.
    Blocks(Matrix),
}

/// The name under which a matrix in blocks is stored.
pub(crate) fn packed_name(name: &str, format: BlockFormat) -> String {
    format!("{name}.{format}")
}

/// All tensors of the new files.
pub(super) fn outputs(opened: &Opened) -> Result<Vec<Output>, ModelError> {
    let checkpoint = Checkpoint::open(&opened.folder)?;
    let matrices = &opened.binding.matrices;
    let rounded: HashMap<&str, &Matrix> = matrices
        .iter()
        .filter(|matrix| matrix.is_rounded() && !is_tied(opened, matrix))
        .map(|matrix| (matrix.stored.name.as_str(), matrix))
        .collect();
    let mut outputs: Vec<Output> = Vec::new();
    for (name, stored) in checkpoint.tensors() {
        // A tied head is the token table, which is read a row at a time as it is.
        outputs.push(match rounded.get(stored.name.as_str()) {
            Some(matrix) => Output {
                name: packed_name(name, matrix.target),
                source: Source::Blocks((*matrix).clone()),
            },
            None => Output { name: stored.name.clone(), source: Source::Copy(stored.clone()) },
        });
    }
    for matrix in matrices.iter().filter(|it| it.is_rounded() && is_tied(opened, it)) {
        let name = packed_name(TIED_HEAD, matrix.target);
        outputs.push(Output { name, source: Source::Blocks(matrix.clone()) });
    }
    Ok(outputs)
}

fn is_tied(opened: &Opened, matrix: &Matrix) -> bool {
    matrix.block.is_none() && matrix.stored.name == opened.binding.tokens.name
}

impl Output {
    fn bytes(&self) -> u64 {
        match &self.source {
            Source::Copy(stored) => stored.range.len() as u64,
            Source::Blocks(matrix) => bytes_of(matrix.target, matrix.rows() * matrix.cols()) as u64,
        }
    }

    /// The bytes that are in memory at once, beside small buffers.
    pub(super) fn memory(&self) -> u64 {
        match &self.source {
            Source::Blocks(matrix) if matrix.layout == Layout::InOut => self.bytes(),
            _ => 0,
        }
    }

    /// Dtype and shape in the header.
    fn form(&self) -> (String, Vec<usize>) {
        match &self.source {
            Source::Copy(stored) => stored.raw_form(),
            Source::Blocks(matrix) => {
                let (rows, cols) = match matrix.layout {
                    Layout::OutIn => (matrix.rows(), matrix.cols()),
                    Layout::InOut => (matrix.cols(), matrix.rows()),
                };
                ("U8".to_owned(), vec![rows, bytes_of(matrix.target, cols)])
            }
        }
    }

    fn write(&self, file: &mut impl Write, done: &mut impl FnMut(u64)) -> Result<(), ModelError> {
        let mut put = |bytes: &[u8]| {
            file.write_all(bytes)?;
            done(bytes.len() as u64);
            Ok::<_, io::Error>(())
        };
        let unwritable = |error: io::Error| {
            ModelError::request(format!("'{}' can't be written: {error}", self.name))
        };
        match &self.source {
            Source::Copy(stored) => {
                let mut buffer = vec![0; STEP.min(stored.range.len())];
                for start in stored.range.clone().step_by(STEP) {
                    let part = &mut buffer[..STEP.min(stored.range.end - start)];
                    stored.file.read_at(start as u64, part)?;
                    put(part).map_err(unwritable)?;
                }
            }
            Source::Blocks(matrix) => {
                let rows = match matrix.layout {
                    // Some rows at a time.
                    Layout::OutIn => (STEP / bytes_of(matrix.target, matrix.cols()).max(1)).max(1),
                    Layout::InOut => matrix.rows(),
                };
                for start in (0..matrix.rows()).step_by(rows) {
                    let rows = start..(start + rows).min(matrix.rows());
                    put(&Piece::new(0, matrix, rows).blocks()?).map_err(unwritable)?;
                }
            }
        }
        Ok(())
    }
}

/// One file of weights.
pub(super) struct Shard {
    pub(super) name: String,
    outputs: Vec<Output>,
}

/// Divides tensors among files, in order.
pub(super) fn divided(outputs: Vec<Output>, most: u64) -> Vec<Shard> {
    let mut groups: Vec<(u64, Vec<Output>)> = Vec::new();
    for output in outputs {
        let bytes = output.bytes();
        match groups.last_mut() {
            Some((sum, group)) if *sum + bytes <= most => {
                *sum += bytes;
                group.push(output);
            }
            _ => groups.push((bytes, vec![output])),
        }
    }
    let count = groups.len();
    let name = |at: usize| match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
    };
    let groups = groups.into_iter().enumerate();
    groups.map(|(at, (_, outputs))| Shard { name: name(at), outputs }).collect()
}

impl Shard {
    /// The bytes of its tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.outputs.iter().map(Output::bytes).sum()
    }

    /// The names of its tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|output| output.name.as_str())
    }

    /// Whether an earlier run has written it: files appear whole.
    pub(super) fn is_in(&self, folder: &Path) -> bool {
        let expected = self.header().len() as u64 + self.bytes();
        fs::metadata(folder.join(&self.name))
            .is_ok_and(|about| about.is_file() && about.len() == expected)
    }

    fn header(&self) -> Vec<u8> {
        let mut entries = Map::new();
        entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let mut start = 0;
        for output in &self.outputs {
            let end = start + output.bytes();
            let (dtype, shape) = output.form();
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            entries.insert(output.name.clone(), entry);
            start = end;
        }
        let mut text = Value::Object(entries).to_string().into_bytes();
        // Tensors begin at a multiple of eight.
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text);
        header
    }

    /// Writes it; `done` is told of bytes of tensors as they are written.
    pub(super) fn write(&self, folder: &Path, mut done: impl FnMut(u64)) -> Result<(), ModelError> {
        let mut failed = None;
        let path = folder.join(&self.name);
        let written = crate::save::whole(&path, |part| {
            let mut file = BufWriter::new(File::create(part)?);
            file.write_all(&self.header())?;
            for output in &self.outputs {
                if let Err(error) = output.write(&mut file, &mut done) {
                    failed = Some(error);
                    return Err(io::ErrorKind::Other.into());
                }
            }
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
        });
        written.map_err(|error| {
            failed.unwrap_or_else(|| ModelError::file(&path, format!("can't be written: {error}")))
        })
    }
}
