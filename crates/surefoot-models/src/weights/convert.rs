//! Converts between the formats of files, the formats in memory, and f32.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use surefoot_quant::BlockFormat;

use super::format::{bytes_of as size_of, numbers_in};
use super::quantize;
use crate::error::ModelError;
use crate::folder::checkpoint::Stored;

/// Converts the numbers of `source`, as files have them, into those of `target`, as many, in
/// this machine's order. Quantised numbers can be converted from, not to.
pub(crate) fn convert(from: BlockFormat, source: &[u8], to: BlockFormat, target: &mut [u8]) {
    match (from, to) {
        (BlockFormat::BF16, BlockFormat::F32) => {
            for (to, from) in
                target.as_chunks_mut::<4>().0.iter_mut().zip(source.as_chunks::<2>().0)
            {
                *to = (u32::from(u16::from_le_bytes(*from)) << 16).to_ne_bytes();
            }
        }
        (BlockFormat::F32, BlockFormat::F32) => {
            for (to, from) in
                target.as_chunks_mut::<4>().0.iter_mut().zip(source.as_chunks::<4>().0)
            {
                *to = f32::from_le_bytes(*from).to_ne_bytes();
            }
        }
        _ => in_tiles(from, source, to, target),
    }
}

/// In tiles, so that the hardware's conversion of whole vectors can be used on any alignment.
fn in_tiles(from: BlockFormat, source: &[u8], to: BlockFormat, target: &mut [u8]) {
    // Whole blocks of every format.
    const TILE: usize = 1024;
    let mut floats = [0.0_f32; TILE];
    let tiles = source.chunks(size_of(from, TILE));
    for (target, source) in target.chunks_mut(size_of(to, TILE)).zip(tiles) {
        let floats = &mut floats[..numbers_in(from, source.len())];
        floats_of(from, source, floats);
        bytes_of(to, floats, target);
    }
}

fn floats_of(format: BlockFormat, source: &[u8], floats: &mut [f32]) {
    match format {
        BlockFormat::F32 => {
            for (float, bytes) in floats.iter_mut().zip(source.as_chunks::<4>().0) {
                *float = f32::from_le_bytes(*bytes);
            }
        }
        BlockFormat::F16 => {
            let mut halves = [f16::ZERO; 1024];
            for (half, bytes) in halves.iter_mut().zip(source.as_chunks::<2>().0) {
                *half = f16::from_le_bytes(*bytes);
            }
            halves[..floats.len()].convert_to_f32_slice(floats);
        }
        BlockFormat::BF16 => {
            for (float, bytes) in floats.iter_mut().zip(source.as_chunks::<2>().0) {
                *float = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        quantized => {
            let fits = quantized.dequantize(source, floats);
            debug_assert!(fits.is_ok(), "as many numbers as the blocks have");
        }
    }
}

/// Writes at most 1,024 numbers in a format of floating point.
pub(super) fn bytes_of(format: BlockFormat, floats: &[f32], target: &mut [u8]) {
    match format {
        BlockFormat::F32 => {
            for (bytes, float) in target.as_chunks_mut::<4>().0.iter_mut().zip(floats) {
                *bytes = float.to_ne_bytes();
            }
        }
        BlockFormat::F16 => {
            let mut halves = [f16::ZERO; 1024];
            halves[..floats.len()].convert_from_f32_slice(floats);
            for (bytes, half) in target.as_chunks_mut::<2>().0.iter_mut().zip(&halves) {
                *bytes = half.to_ne_bytes();
            }
        }
        BlockFormat::BF16 => {
            for (bytes, float) in target.as_chunks_mut::<2>().0.iter_mut().zip(floats) {
                *bytes = bf16::from_f32(*float).to_ne_bytes();
            }
        }
        quantized => debug_assert!(false, "nothing is turned into {quantized} while it is loaded"),
    }
}

impl Stored {
    /// All its numbers as f32, row after row.
    pub fn numbers(&self) -> Result<Vec<f32>, ModelError> {
        let format = self.format()?;
        let mut numbers = vec![0.0; self.shape.iter().product()];
        add_row(self, format, format, 0, &mut numbers)?;
        Ok(numbers)
    }
}

/// Adds a row of a table to `sum`, rounded to `target`; a vector is a table of one row.
pub(crate) fn add_row(
    stored: &Stored,
    format: BlockFormat,
    target: BlockFormat,
    row: usize,
    sum: &mut [f32],
) -> Result<(), ModelError> {
    let mut source = vec![0; size_of(format, sum.len())];
    let mut numbers = vec![0; sum.len() * 4];
    match (stored.is_foreign(), stored.shape.get(1)) {
        (true, Some(cols)) => {
            let rows = sum.len() / cols.max(&1);
            stored.read_rows(row * rows..(row + 1) * rows, &mut source)?;
        }
        _ => stored.file.read_at((stored.range.start + row * source.len()) as u64, &mut source)?,
    }
    match target == format {
        true => convert(format, &source, BlockFormat::F32, &mut numbers),
        false => quantize::in_order(format, &source, target, BlockFormat::F32, &mut numbers)
            .map_err(|error| stored.problem(format!("can't be quantised: {error}")))?,
    }
    for (sum, number) in sum.iter_mut().zip(numbers.as_chunks::<4>().0) {
        *sum += f32::from_ne_bytes(*number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn through(format: BlockFormat, numbers: &[f32]) -> Vec<f32> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut kept = vec![0; size_of(format, numbers.len())];
        convert(BlockFormat::F32, &bytes, format, &mut kept);
        let mut back = vec![0; bytes.len()];
        convert(format, &kept, BlockFormat::F32, &mut back);
        back.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    proptest! {
        #[test]
        fn every_dtype_rounds_as_it_should(numbers in prop::collection::vec(-100_f32..100.0, 1..3000)) {
            prop_assert_eq!(&through(BlockFormat::F32, &numbers), &numbers);
            for (number, got) in numbers.iter().zip(through(BlockFormat::F16, &numbers)) {
                prop_assert_eq!(got, f16::from_f32(*number).to_f32());
            }
            for (number, got) in numbers.iter().zip(through(BlockFormat::BF16, &numbers)) {
                prop_assert_eq!(got, bf16::from_f32(*number).to_f32());
            }
        }
    }
}
