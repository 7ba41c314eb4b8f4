//! Between what files store, what is kept and f32.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::error::ModelError;
use crate::folder::checkpoint::Stored;
use crate::folder::header::WeightDtype;

/// Converts the numbers of `source`, as files have them, into those of `target`, as many, in
/// this machine's order.
pub(crate) fn convert(from: WeightDtype, source: &[u8], to: WeightDtype, target: &mut [u8]) {
    match (from, to) {
        (WeightDtype::Bf16, WeightDtype::F32) => {
            for (to, from) in
                target.as_chunks_mut::<4>().0.iter_mut().zip(source.as_chunks::<2>().0)
            {
                *to = (u32::from(u16::from_le_bytes(*from)) << 16).to_ne_bytes();
            }
        }
        (WeightDtype::F32, WeightDtype::F32) => {
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
fn in_tiles(from: WeightDtype, source: &[u8], to: WeightDtype, target: &mut [u8]) {
    const TILE: usize = 1024;
    let mut floats = [0.0_f32; TILE];
    let tiles = source.chunks(TILE * from.size());
    for (target, source) in target.chunks_mut(TILE * to.size()).zip(tiles) {
        let floats = &mut floats[..source.len() / from.size()];
        floats_of(from, source, floats);
        bytes_of(to, floats, target);
    }
}

fn floats_of(dtype: WeightDtype, source: &[u8], floats: &mut [f32]) {
    match dtype {
        WeightDtype::F32 => {
            for (float, bytes) in floats.iter_mut().zip(source.as_chunks::<4>().0) {
                *float = f32::from_le_bytes(*bytes);
            }
        }
        WeightDtype::F16 => {
            let mut halves = [f16::ZERO; 1024];
            for (half, bytes) in halves.iter_mut().zip(source.as_chunks::<2>().0) {
                *half = f16::from_le_bytes(*bytes);
            }
            halves[..floats.len()].convert_to_f32_slice(floats);
        }
        WeightDtype::Bf16 => {
            for (float, bytes) in floats.iter_mut().zip(source.as_chunks::<2>().0) {
                *float = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}

fn bytes_of(dtype: WeightDtype, floats: &[f32], target: &mut [u8]) {
    match dtype {
        WeightDtype::F32 => {
            for (bytes, float) in target.as_chunks_mut::<4>().0.iter_mut().zip(floats) {
                *bytes = float.to_ne_bytes();
            }
        }
        WeightDtype::F16 => {
            let mut halves = [f16::ZERO; 1024];
            halves[..floats.len()].convert_from_f32_slice(floats);
            for (bytes, half) in target.as_chunks_mut::<2>().0.iter_mut().zip(&halves) {
                *bytes = half.to_ne_bytes();
            }
        }
        WeightDtype::Bf16 => {
            for (bytes, float) in target.as_chunks_mut::<2>().0.iter_mut().zip(floats) {
                *bytes = bf16::from_f32(*float).to_ne_bytes();
            }
        }
    }
}

/// Adds a row of a table to `sum`; a vector is a table of one row.
pub(crate) fn add_row(
    stored: &Stored,
    dtype: WeightDtype,
    row: usize,
    sum: &mut [f32],
) -> Result<(), ModelError> {
    let mut source = vec![0; sum.len() * dtype.size()];
    let mut numbers = vec![0; sum.len() * 4];
    stored.file.read_at((stored.range.start + row * source.len()) as u64, &mut source)?;
    convert(dtype, &source, WeightDtype::F32, &mut numbers);
    for (sum, number) in sum.iter_mut().zip(numbers.as_chunks::<4>().0) {
        *sum += f32::from_ne_bytes(*number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn through(dtype: WeightDtype, numbers: &[f32]) -> Vec<f32> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut kept = vec![0; numbers.len() * dtype.size()];
        convert(WeightDtype::F32, &bytes, dtype, &mut kept);
        let mut back = vec![0; bytes.len()];
        convert(dtype, &kept, WeightDtype::F32, &mut back);
        back.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    proptest! {
        #[test]
        fn every_dtype_rounds_as_it_should(numbers in prop::collection::vec(-100_f32..100.0, 1..3000)) {
            prop_assert_eq!(&through(WeightDtype::F32, &numbers), &numbers);
            for (number, got) in numbers.iter().zip(through(WeightDtype::F16, &numbers)) {
                prop_assert_eq!(got, f16::from_f32(*number).to_f32());
            }
            for (number, got) in numbers.iter().zip(through(WeightDtype::Bf16, &numbers)) {
                prop_assert_eq!(got, bf16::from_f32(*number).to_f32());
            }
        }
    }
}
