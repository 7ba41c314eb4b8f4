//! Weights that are quantised while they are loaded.
//!
//! Blocks go along the inputs of a matrix: along the rows of a file that has outputs as rows, down the rows of one
//! that has inputs as rows. Where a processor multiplies packed weights, the latter are turned on the way, so that
//! both are rows of blocks in memory. Other devices get the rounded numbers in the dtype of products.

use rayon::prelude::*;
use surefoot_quant::{BlockError, BlockFormat};

use super::convert;
use super::format::{bytes_of, numbers_in};

/// Numbers that one thread rounds at a time: whole blocks of every format.
const TILE: usize = 1024;
/// Tiles that are worth a task of their own.
const TILES: usize = 8;

/// Rounds the numbers of `source`, which are in `from`, to `target`, and writes them as `kept`: in the same order.
pub(crate) fn in_order(
    from: BlockFormat,
    source: &[u8],
    target: BlockFormat,
    kept: BlockFormat,
    memory: &mut [u8],
) -> Result<(), BlockError> {
    let part = TILES * TILE;
    let parts = memory.par_chunks_mut(bytes_of(kept, part));
    parts.zip(source.par_chunks(bytes_of(from, part))).try_for_each(|(memory, source)| {
        let mut floats = [0.0_f32; TILE];
        let mut blocks = [0_u8; 4 * TILE];
        let tiles =
            memory.chunks_mut(bytes_of(kept, TILE)).zip(source.chunks(bytes_of(from, TILE)));
        for (memory, source) in tiles {
            let floats = &mut floats[..numbers_in(from, source.len())];
            from.dequantize(source, floats)?;
            if kept == target {
                target.quantize(floats, memory)?;
                continue;
            }
            let blocks = &mut blocks[..bytes_of(target, floats.len())];
            target.quantize(floats, blocks)?;
            target.dequantize(blocks, floats)?;
            convert::bytes_of(kept, floats, memory);
        }
        Ok(())
    })
}

/// Rounds rows of `cols` numbers whose blocks go down: `source` has the rows of whole blocks in `from`. `memory` is
/// that of all rows of the piece, turned into `cols` rows of blocks; the first block of each is number `at`.
pub(crate) fn turned(
    from: BlockFormat,
    source: &[u8],
    cols: usize,
    target: BlockFormat,
    (memory, at): (&mut [u8], usize),
) -> Result<(), BlockError> {
    let mut floats = vec![0.0_f32; numbers_in(from, source.len())];
    from.dequantize(source, &mut floats)?;
    let (len, bytes) = (target.block_len(), target.block_bytes());
    let bands = floats.len() / cols / len;
    let row = memory.len() / cols;
    memory.par_chunks_mut(row).with_min_len(32).enumerate().try_for_each(|(col, memory)| {
        let mut column = [0.0_f32; 256];
        let column = &mut column[..len];
        let blocks = memory[at * bytes..].chunks_exact_mut(bytes).take(bands);
        for (band, block) in blocks.enumerate() {
            for (inside, number) in column.iter_mut().enumerate() {
                *number = floats[(band * len + inside) * cols + col];
            }
            target.quantize(column, block)?;
        }
        Ok(())
    })
}

/// Rounds rows of `cols` numbers whose blocks go down, and writes them as `kept`, in the order that they have.
pub(crate) fn down_the_rows(
    from: BlockFormat,
    source: &[u8],
    cols: usize,
    target: BlockFormat,
    kept: BlockFormat,
    memory: &mut [u8],
) -> Result<(), BlockError> {
    let mut floats = vec![0.0_f32; numbers_in(from, source.len())];
    from.dequantize(source, &mut floats)?;
    let len = target.block_len();
    let (mut column, mut block) = ([0.0_f32; 256], [0_u8; 256]);
    let (column, block) = (&mut column[..len], &mut block[..target.block_bytes()]);
    for band in floats.chunks_exact_mut(len * cols) {
        for col in 0..cols {
            for (inside, number) in column.iter_mut().enumerate() {
                *number = band[inside * cols + col];
            }
            target.quantize(column, block)?;
            target.dequantize(block, column)?;
            for (inside, number) in column.iter().enumerate() {
                band[inside * cols + col] = *number;
            }
        }
    }
    for (floats, memory) in floats.chunks(TILE).zip(memory.chunks_mut(bytes_of(kept, TILE))) {
        convert::bytes_of(kept, floats, memory);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use BlockFormat::{BF16, F32, Q4_0, Q8_0};

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 % 101) as f32 - 50.0) / 70.0 + at as f32 * 1e-4).collect()
    }

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn unpacked(format: BlockFormat, blocks: &[u8]) -> Vec<f32> {
        let mut floats = vec![0.0; numbers_in(format, blocks.len())];
        format.dequantize(blocks, &mut floats).unwrap();
        floats
    }

    /// Some thousands of numbers, so that there are several tasks and a short last tile.
    #[test]
    fn numbers_in_order_are_those_of_the_quantiser_also_as_floats() {
        let floats = numbers(9 * TILE + 96);
        for target in [Q8_0, Q4_0] {
            let mut expected = vec![0; bytes_of(target, floats.len())];
            target.quantize(&floats, &mut expected).unwrap();
            let mut packed = vec![0; expected.len()];
            in_order(F32, &bytes(&floats), target, target, &mut packed).unwrap();
            assert_eq!(packed, expected);
            let mut plain = vec![0; floats.len() * 4];
            in_order(F32, &bytes(&floats), target, F32, &mut plain).unwrap();
            assert_eq!(plain, bytes(&unpacked(target, &expected)));
        }
    }

    #[test]
    fn blocks_that_go_down_are_those_of_the_turned_matrix() {
        let (rows, cols) = (96, 64);
        let floats = numbers(rows * cols);
        let turn = |floats: &[f32], rows: usize, cols: usize| -> Vec<f32> {
            (0..rows * cols).map(|at| floats[at % rows * cols + at / rows]).collect()
        };
        let mut expected = vec![0; bytes_of(Q4_0, rows * cols)];
        Q4_0.quantize(&turn(&floats, rows, cols), &mut expected).unwrap();
        // In two steps, as a file is read.
        let source = bytes(&floats);
        let (first, second) = source.split_at(32 * cols * 4);
        let mut packed = vec![0; expected.len()];
        turned(F32, first, cols, Q4_0, (&mut packed, 0)).unwrap();
        turned(F32, second, cols, Q4_0, (&mut packed, 1)).unwrap();
        assert_eq!(packed, expected);
        let mut plain = vec![0; rows * cols * 4];
        down_the_rows(F32, &source, cols, Q4_0, F32, &mut plain).unwrap();
        assert_eq!(plain, bytes(&turn(&unpacked(Q4_0, &expected), cols, rows)));
    }

    #[test]
    fn a_number_that_is_none_is_refused() {
        let mut floats = numbers(64);
        floats[40] = f32::NAN;
        let mut packed = vec![0; bytes_of(Q8_0, 64)];
        assert!(matches!(
            in_order(F32, &bytes(&floats), Q8_0, Q8_0, &mut packed),
            Err(BlockError::NotFinite { .. })
        ));
        assert!(in_order(BF16, &[0; 128], Q8_0, Q8_0, &mut packed).is_ok());
    }
}
