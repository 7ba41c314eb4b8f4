//! Matrices that other programs quantised, as rows of our blocks.
//!
//! GPTQ and AWQ have the inputs of a matrix as rows and several numbers in a word; a matrix is several tensors. Here it is one
//! tensor with outputs as rows, under the name that the plain matrix would have, whose blocks are made as they are read, a few
//! rows at a time and never all of the matrix:
//!
//! - 4 bits with scales in F16 become [`BlockFormat::Q4_0`] (zero points of 8) or [`BlockFormat::Q4_ZP`]: no number changes;
//! - 4 bits whose inputs are in groups that are not neighbours (act-order), or with other scales, and fp8 become
//!   [`BlockFormat::Q8_0`], which rounds them by less than they were rounded before.
//!
//! Every shape is checked when a folder is opened, and the sizes of files against the shapes.

mod rows;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use surefoot_quant::BlockFormat;

use super::checkpoint::Stored;
use super::quantization::Scheme;
use crate::error::ModelError;

/// Numbers of a matrix that are unpacked at once, about: enough that rows, which lie across the whole tensor in GPTQ and AWQ, are
/// not read in too small parts.
const WORDS_STEP: usize = 4 << 20;
/// The same for fp8, whose rows lie together and become f32 on the way.
const FP8_STEP: usize = 1 << 20;
/// Numbers of 4 bits in a word.
const IN_WORD: usize = 8;

/// What a matrix is made from beside its numbers.
#[derive(Debug)]
pub(super) struct Foreign {
    packing: Packing,
    outputs: usize,
    inputs: usize,
    scales: Stored,
    /// In which format scales are.
    scale_format: BlockFormat,
    zeros: Option<Stored>,
    /// The group of each input, where groups are not neighbours.
    order: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Packing {
    Gptq {
        group: usize,
        zero_offset: u8,
    },
    Awq {
        group: usize,
    },
    /// Outputs and inputs that share a scale.
    Fp8 {
        block: [usize; 2],
    },
}

/// Whether a folder has tensors of other programs' quantisation.
pub(super) fn is_quantized(tensors: &BTreeMap<String, Stored>) -> bool {
    tensors.iter().any(|(name, stored)| name.ends_with(".qweight") || stored.dtype == "F8_E4M3")
}

/// The tensors of a folder, with a quantised matrix as one tensor under the name of the plain one.
pub(super) fn adopt(
    mut tensors: BTreeMap<String, Stored>,
    scheme: Scheme,
) -> Result<BTreeMap<String, Stored>, ModelError> {
    let mut adopted = BTreeMap::new();
    match scheme {
        Scheme::Gptq { .. } | Scheme::Awq { .. } => {
            let names: Vec<String> = tensors
                .keys()
                .filter_map(|name| name.strip_suffix(".qweight").map(str::to_owned))
                .collect();
            for base in names {
                let stored = of_words(&mut tensors, &base, scheme)?;
                adopted.insert(format!("{base}.weight"), stored);
            }
        }
        Scheme::Fp8 { block } => {
            let is_fp8 = |stored: &Stored| stored.dtype == "F8_E4M3";
            let names: Vec<String> = tensors
                .iter()
                .filter_map(|(name, stored)| {
                    name.strip_suffix(".weight").filter(|_| is_fp8(stored))
                })
                .map(str::to_owned)
                .collect();
            for base in names {
                // How activations were to be rounded; here they are not rounded to fp8.
                tensors.remove(&format!("{base}.input_scale"));
                let stored = of_fp8(&mut tensors, &base, block)?;
                adopted.insert(format!("{base}.weight"), stored);
            }
        }
    }
    for (name, stored) in tensors {
        if let Some(first) = adopted.insert(name, stored) {
            return Err(first.problem("is there twice, once quantised"));
        }
    }
    Ok(adopted)
}

fn expect(stored: &Stored, dtype: &str, shape: &[usize]) -> Result<(), ModelError> {
    match stored.dtype == dtype && stored.shape == shape {
        true => Ok(()),
        false => {
            Err(stored.problem(format!("is {}, and should be {dtype} {shape:?}", stored.form())))
        }
    }
}

fn scale_format(scales: &Stored) -> Result<BlockFormat, ModelError> {
    let format = scales.format()?;
    match format {
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => Ok(format),
        other => Err(scales.problem(format!("is in {other}, and scales can't be"))),
    }
}

/// A matrix of GPTQ or AWQ.
fn of_words(
    tensors: &mut BTreeMap<String, Stored>,
    base: &str,
    scheme: Scheme,
) -> Result<Stored, ModelError> {
    let words = tensors
        .remove(&format!("{base}.qweight"))
        .ok_or_else(|| ModelError::request(format!("'{base}' has no qweight")))?;
    let mut take = |name: &str| {
        let missing = || words.problem(format!("has no '{base}.{name}' beside it"));
        tensors.remove(&format!("{base}.{name}")).ok_or_else(missing)
    };
    let (scales, zeros) = (take("scales")?, take("qzeros")?);
    let order = take("g_idx").ok();
    let [first, second] = words.shape[..] else {
        return Err(words.problem(format!("must be a matrix, but is {}", words.form())));
    };
    // A dimension is at most the bytes of its file, unless the other is 0.
    let (inputs, outputs) = match scheme {
        Scheme::Gptq { .. } => (first.saturating_mul(IN_WORD), second),
        _ => (first, second.saturating_mul(IN_WORD)),
    };
    if words.dtype != "I32" || inputs == 0 || outputs == 0 {
        return Err(words.problem(format!("is {}, and should be words in I32", words.form())));
    }
    if !inputs.is_multiple_of(32) || !outputs.is_multiple_of(IN_WORD) {
        return Err(words.problem(format!(
            "has {inputs} inputs and {outputs} outputs, which must be multiples of 32 and {IN_WORD}"
        )));
    }
    let (group, symmetric) = match scheme {
        Scheme::Gptq { group, symmetric, .. } => (group, symmetric),
        Scheme::Awq { group } => (group, false),
        Scheme::Fp8 { .. } => return Err(words.problem("is not fp8")),
    };
    let group = group.unwrap_or(inputs);
    let groups = inputs.div_ceil(group);
    if scales.shape != [groups, outputs] {
        return Err(scales.problem(format!(
            "is {}, and should have the shape {:?}",
            scales.form(),
            [groups, outputs]
        )));
    }
    expect(&zeros, "I32", &[groups, outputs / IN_WORD])?;
    let order = match order {
        Some(order) => groups_of(&order, inputs, group, groups)?,
        None => None,
    };
    let scale_format = scale_format(&scales)?;
    let exact = order.is_none() && scale_format == BlockFormat::F16;
    let format = match (exact, symmetric) {
        (true, true) => BlockFormat::Q4_0,
        (true, false) => BlockFormat::Q4_ZP,
        (false, _) => BlockFormat::Q8_0,
    };
    let packing = match scheme {
        Scheme::Gptq { zero_offset, .. } => Packing::Gptq { group, zero_offset },
        _ => Packing::Awq { group },
    };
    let zeros = Some(zeros);
    let foreign = Foreign { packing, outputs, inputs, scales, scale_format, zeros, order };
    Ok(words.adopted(format!("{base}.weight"), format, foreign))
}

/// The group of each input, if it is not the one that follows from its place.
fn groups_of(
    stored: &Stored,
    inputs: usize,
    group: usize,
    groups: usize,
) -> Result<Option<Vec<u32>>, ModelError> {
    expect(stored, "I32", &[inputs])?;
    let mut bytes = vec![0; stored.range.len()];
    stored.file.read_at(stored.range.start as u64, &mut bytes)?;
    let order: Vec<u32> = words_of(&bytes).collect();
    if let Some(wrong) = order.iter().find(|at| **at as usize >= groups) {
        return Err(stored.problem(format!("names the group {wrong} of {groups}")));
    }
    let plain = order.iter().enumerate().all(|(at, found)| at / group == *found as usize);
    Ok((!plain).then_some(order))
}

/// A matrix in fp8.
fn of_fp8(
    tensors: &mut BTreeMap<String, Stored>,
    base: &str,
    block: Option<[usize; 2]>,
) -> Result<Stored, ModelError> {
    let stored = tensors
        .remove(&format!("{base}.weight"))
        .ok_or_else(|| ModelError::request(format!("'{base}' has no weight")))?;
    let scales = ["weight_scale_inv", "weight_scale"]
        .into_iter()
        .find_map(|name| tensors.remove(&format!("{base}.{name}")));
    let Some(scales) = scales else {
        return Err(stored.problem("is in fp8, but has neither weight_scale nor weight_scale_inv"));
    };
    let [outputs, inputs] = stored.shape[..] else {
        return Err(stored.problem(format!("must be a matrix, but is {}", stored.form())));
    };
    if outputs == 0 || inputs == 0 {
        return Err(stored.problem(format!("is empty: {}", stored.form())));
    }
    let block = match (&scales.shape[..], block) {
        ([] | [1] | [1, 1], None) => [outputs, inputs],
        ([rows] | [rows, 1], None) if *rows == outputs => [1, inputs],
        (shape, Some([rows, cols]))
            if *shape == [outputs.div_ceil(rows), inputs.div_ceil(cols)] =>
        {
            [rows, cols]
        }
        _ => {
            return Err(scales.problem(format!(
                "is {}, which are no scales of a matrix of {:?}",
                scales.form(),
                stored.shape
            )));
        }
    };
    let scale_format = scale_format(&scales)?;
    let format = match inputs.is_multiple_of(BlockFormat::Q8_0.block_len()) {
        true => BlockFormat::Q8_0,
        false => BlockFormat::F32,
    };
    let packing = Packing::Fp8 { block };
    let foreign =
        Foreign { packing, outputs, inputs, scales, scale_format, zeros: None, order: None };
    Ok(stored.adopted(format!("{base}.weight"), format, foreign))
}

impl Foreign {
    /// Its bytes beside those of the numbers.
    pub(super) fn extra_bytes(&self) -> usize {
        self.scales.range.len() + self.zeros.as_ref().map_or(0, |zeros| zeros.range.len())
    }

    /// What the system should read ahead for some rows of `stored`.
    pub(super) fn range(&self, stored: &Stored, rows: &Range<usize>) -> Range<usize> {
        let start = stored.range.start;
        match self.packing {
            Packing::Fp8 { .. } => start + rows.start * self.inputs..start + rows.end * self.inputs,
            // Rows lie across the whole tensor.
            Packing::Gptq { .. } | Packing::Awq { .. } => stored.range.clone(),
        }
    }

    /// Rows of `stored` as blocks in `format`, which is the one it was given when it was adopted.
    pub(super) fn read(
        &self,
        stored: &Stored,
        format: BlockFormat,
        rows: Range<usize>,
        blocks: &mut [u8],
    ) -> Result<(), ModelError> {
        let row_bytes = self.inputs / format.block_len() * format.block_bytes();
        // Outputs share words eight at a time.
        let step = match self.packing {
            Packing::Fp8 { .. } => FP8_STEP,
            Packing::Gptq { .. } | Packing::Awq { .. } => WORDS_STEP,
        };
        let step = (step / self.inputs).max(1).next_multiple_of(IN_WORD);
        let mut from = rows.start / IN_WORD * IN_WORD;
        while from < rows.end {
            let to = (from + step).min(rows.end.next_multiple_of(IN_WORD)).min(self.outputs);
            let decoded = match self.packing {
                Packing::Fp8 { .. } => self.read_fp8(stored, from..to)?,
                Packing::Gptq { .. } | Packing::Awq { .. } => self.read_words(stored, from..to)?,
            };
            for row in from.max(rows.start)..to.min(rows.end) {
                let target = &mut blocks[(row - rows.start) * row_bytes..][..row_bytes];
                decoded.write(row - from, format, target, stored)?;
            }
            from = to;
        }
        Ok(())
    }
}

impl Stored {
    /// The same place as a matrix that is read through `foreign`.
    fn adopted(self, name: String, format: BlockFormat, foreign: Foreign) -> Self {
        Self {
            name,
            dtype: format.name().to_owned(),
            shape: vec![foreign.outputs, foreign.inputs],
            foreign: Some(Arc::new(foreign)),
            ..self
        }
    }
}

/// Words of 32 bits in the order of files.
fn words_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}
