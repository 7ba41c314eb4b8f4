//! Rows in half precision on the processor: turned into f32 as they are read by the threads that multiply, a tile at a time where rows are
//! inputs, so that f32 numbers never leave a core's cache.
//!
//! With up to [`ALIKE_COLUMNS`] columns, each gives the bits that it gives alone.

use std::sync::{Mutex, PoisonError};

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use memmap2::MmapMut;
use rayon::prelude::*;

use super::convert;
use super::format::bytes_of;
use super::shared_product::shared_product;
use crate::arch::blueprint::Layout;
use surefoot_quant::BlockFormat;
use surefoot_quant::product::ALIKE_COLUMNS;

/// The f32 bytes of a tile. A core's cache holds it; more columns want more work a tile.
const TILE: usize = 512 << 10;

/// Rows of a matrix, as bytes in fp16 or bf16.
#[derive(Clone, Debug)]
pub(crate) struct HalfRows {
    memory: bytes::Bytes,
    format: BlockFormat,
    rows: usize,
    cols: usize,
}

impl HalfRows {
    /// `memory` holds `rows` × `cols` numbers.
    pub(crate) fn new(memory: bytes::Bytes, format: BlockFormat, rows: usize, cols: usize) -> Self {
        debug_assert_eq!(memory.len(), bytes_of(format, rows * cols));
        Self { memory, format, rows, cols }
    }

    /// See [`Weight::times`](super::weight::Weight::times).
    pub(crate) fn times(&self, layout: Layout, x: Tensor<2>) -> Tensor<2> {
        let x = match layout {
            Layout::OutIn => {
                match shared_product(&self.memory, self.format, [self.rows, self.cols], x) {
                    Ok(y) => return y,
                    Err(x) => x,
                }
            }
            Layout::InOut => x,
        };
        let columns = x.dims()[1];
        let few = columns <= ALIKE_COLUMNS;
        // Outputs are shared out in either layout, so that no results have to be summed.
        let (outputs, inputs) = match layout {
            Layout::OutIn => (self.rows, self.cols),
            Layout::InOut => (self.cols, self.rows),
        };
        let most = (TILE / 4 / inputs.max(1)).max(1);
        let fair = outputs.div_ceil(rayon::current_num_threads()).max(1);
        let step = outputs.div_ceil(outputs.div_ceil(most.min(fair)).max(1)).max(1);
        let parts: Vec<Tensor<2>> = (0..outputs.div_ceil(step))
            .into_par_iter()
            .map(|part| {
                let from = part * step;
                let count = step.min(outputs - from);
                let weights = match layout {
                    Layout::OutIn => self.some_rows(from, count),
                    Layout::InOut => self.some_cols(from, count).transpose(),
                };
                match few && columns > 1 {
                    // A general product adds up in another order for another number of columns.
                    true => {
                        let one = |at| weights.clone().matmul(x.clone().narrow(1, at, 1));
                        Tensor::cat((0..columns).map(one).collect(), 1)
                    }
                    false => weights.matmul(x.clone()),
                }
            })
            .collect();
        Tensor::cat(parts, 0)
    }

    /// Rows `from..from + count` as f32.
    fn some_rows(&self, from: usize, count: usize) -> Tensor<2> {
        let row = bytes_of(self.format, self.cols);
        let source = &self.memory[from * row..(from + count) * row];
        tile([count, self.cols], |target| {
            convert::convert(self.format, source, BlockFormat::F32, target)
        })
    }

    /// Columns `from..from + count` as f32.
    fn some_cols(&self, from: usize, count: usize) -> Tensor<2> {
        let size = self.format.block_bytes();
        tile([self.rows, count], |target| {
            let rows = self.memory.chunks_exact(self.cols * size);
            for (row, target) in rows.zip(target.chunks_exact_mut(count * 4)) {
                let source = &row[from * size..(from + count) * size];
                convert::convert(self.format, source, BlockFormat::F32, target);
            }
        })
    }
}

/// A tensor of f32 whose memory is filled by `fill` and used again for another.
fn tile(shape: [usize; 2], fill: impl FnOnce(&mut [u8])) -> Tensor<2> {
    let size = shape[0] * shape[1] * 4;
    let Some(mut memory) = spare(size) else {
        // No mapping to be had: the ordinary allocator says so in its own way.
        let mut bytes = vec![0; size];
        fill(&mut bytes);
        let numbers: Vec<f32> =
            bytes.as_chunks::<4>().0.iter().map(|number| f32::from_ne_bytes(*number)).collect();
        return Tensor::from_data(TensorData::new(numbers, shape), &Device::flex());
    };
    fill(&mut memory[..size]);
    let shared = bytes::Bytes::from_owner(Tile { memory: Some(memory), size });
    let bytes = Bytes::from_shared(shared, AllocationProperty::Other);
    let data = TensorData::from_bytes(bytes, shape, DType::F32);
    Tensor::from_data(data, (&Device::flex(), DType::F32))
}

/// Memory of tiles that are done: new pages cost more than converting does.
static SPARE: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());

fn spare(size: usize) -> Option<MmapMut> {
    let kept = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    kept.filter(|memory| memory.len() >= size).or_else(|| MmapMut::map_anon(size.max(TILE)).ok())
}

struct Tile {
    memory: Option<MmapMut>,
    size: usize,
}

impl AsRef<[u8]> for Tile {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.size])
    }
}

impl Drop for Tile {
    fn drop(&mut self) {
        // What is larger than a tile is rare: a matrix with very long rows.
        if let Some(memory) = self.memory.take().filter(|memory| memory.len() <= TILE) {
            let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
            if spare.len() < rayon::current_num_threads() {
                spare.push(memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    fn stored(format: BlockFormat, numbers: &[f32]) -> bytes::Bytes {
        let both = |number: &f32| match format {
            BlockFormat::F16 => f16::from_f32(*number).to_le_bytes(),
            _ => bf16::from_f32(*number).to_le_bytes(),
        };
        numbers.iter().flat_map(both).collect::<Vec<u8>>().into()
    }

    #[test]
    fn up_to_eight_columns_give_the_bits_that_each_gives_alone() {
        for format in [BlockFormat::F16, BlockFormat::BF16] {
            let (rows, cols) = (301, 157);
            let number = |at: usize| ((at * 7919) % 1013) as f32 / 301.0 - 1.5;
            let weight: Vec<f32> = (0..rows * cols).map(number).collect();
            let half = HalfRows::new(stored(format, &weight), format, rows, cols);
            for (layout, inputs) in [(Layout::OutIn, cols), (Layout::InOut, rows)] {
                let x: Vec<f32> = (0..inputs * ALIKE_COLUMNS).map(|at| number(at + 3)).collect();
                let x: Tensor<2> =
                    Tensor::from_data(TensorData::new(x, [inputs, ALIKE_COLUMNS]), &Device::flex());
                let alone: Vec<Tensor<2>> = (0..ALIKE_COLUMNS)
                    .map(|at| half.times(layout, x.clone().narrow(1, at, 1)))
                    .collect();
                for columns in 2..=ALIKE_COLUMNS {
                    let together = half.times(layout, x.clone().narrow(1, 0, columns));
                    let expected = Tensor::cat(alone[..columns].to_vec(), 1).into_data();
                    assert_eq!(together.into_data(), expected, "{format}, {columns} columns");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Small integers, which both dtypes hold exactly, so that the result is exact too.
        #[test]
        fn a_product_is_what_the_numbers_say(
            rows in 1_usize..90, cols in 1_usize..90, columns in 1_usize..4,
            seed in 0_i32..1000, long in any::<bool>(),
        ) {
            // Long rows make many tiles.
            let cols = if long { cols * 3001 } else { cols };
            let number = |at: usize| ((at as i32 * 7 + seed) % 5 - 2) as f32;
            let weight: Vec<f32> = (0..rows * cols).map(number).collect();
            for format in [BlockFormat::F16, BlockFormat::BF16] {
                let half = HalfRows::new(stored(format, &weight), format, rows, cols);
                for (layout, inputs, outputs) in
                    [(Layout::OutIn, cols, rows), (Layout::InOut, rows, cols)]
                {
                    let x: Vec<f32> = (0..inputs * columns).map(|at| number(at + 3)).collect();
                    let tensor = Tensor::from_data(
                        TensorData::new(x.clone(), [inputs, columns]), &Device::flex());
                    let y = half.times(layout, tensor).into_data().try_to_vec::<f32>().unwrap();
                    prop_assert_eq!(y.len(), outputs * columns);
                    for output in [0, outputs / 2, outputs - 1] {
                        for column in 0..columns {
                            let sum: f32 = (0..inputs).map(|input| {
                                let at = match layout {
                                    Layout::OutIn => output * cols + input,
                                    Layout::InOut => input * cols + output,
                                };
                                weight[at] * x[input * columns + column]
                            }).sum();
                            prop_assert_eq!(y[output * columns + column], sum);
                        }
                    }
                }
            }
        }
    }
}
