//! From what files store to f32.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::error::ModelError;
use crate::folder::checkpoint::Stored;
use crate::folder::header::Dtype;

/// Converts `source` into the native f32 bytes of `target`, which must be as many numbers.
pub(crate) fn to_f32(dtype: Dtype, source: &[u8], target: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            for (to, from) in
                target.as_chunks_mut::<4>().0.iter_mut().zip(source.as_chunks::<4>().0)
            {
                *to = f32::from_le_bytes(*from).to_ne_bytes();
            }
        }
        Dtype::Bf16 => {
            for (to, from) in
                target.as_chunks_mut::<4>().0.iter_mut().zip(source.as_chunks::<2>().0)
            {
                *to = (u32::from(u16::from_le_bytes(*from)) << 16).to_ne_bytes();
            }
        }
        Dtype::F16 => f16_to_f32(source, target),
    }
}

/// In tiles, so that the hardware's conversion of whole vectors can be used on any alignment.
fn f16_to_f32(source: &[u8], target: &mut [u8]) {
    const TILE: usize = 1024;
    let mut halves = [f16::ZERO; TILE];
    let mut floats = [0.0_f32; TILE];
    for (to, from) in target.chunks_mut(TILE * 4).zip(source.chunks(TILE * 2)) {
        let from = from.as_chunks::<2>().0;
        let count = from.len();
        for (half, bytes) in halves.iter_mut().zip(from) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves[..count].convert_to_f32_slice(&mut floats[..count]);
        for (to, float) in to.as_chunks_mut::<4>().0.iter_mut().zip(&floats[..count]) {
            *to = float.to_ne_bytes();
        }
    }
}

/// Adds a row of a table to `sum`; a vector is a table of one row.
pub(crate) fn add_row(
    stored: &Stored,
    dtype: Dtype,
    row: usize,
    sum: &mut [f32],
) -> Result<(), ModelError> {
    let mut source = vec![0; sum.len() * dtype.size()];
    let mut numbers = vec![0; sum.len() * 4];
    stored.file.read_at((stored.range.start + row * source.len()) as u64, &mut source)?;
    to_f32(dtype, &source, &mut numbers);
    for (sum, number) in sum.iter_mut().zip(numbers.as_chunks::<4>().0) {
        *sum += f32::from_ne_bytes(*number);
    }
    Ok(())
}
