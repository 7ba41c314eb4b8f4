//! Products of packed weights with activations, on the processor.
//!
//! Weights stay in their blocks ([`PackedRows`] borrows them, also from a mapped file). Activations are
//! quantised to 8 bits in blocks of 32 ([`Activations`]), so that the inner loops are integer dot
//! products; scales are applied once for each sub-block. F32, F16 and BF16 weights are multiplied in f32, but for BF16 weights with many
//! columns of activations that are bf16 numbers already, as with `--precision bf16`: those go through the processor's dot products of bf16 numbers, where it has
//! them. Activations are never rounded to bf16 here.
//!
//! With few columns (decoding) each row is unpacked in registers or in the first-level cache and read
//! once. With more (prompts, many sequences) sixteen rows are unpacked and interleaved at a time, and that panel is used for
//! all columns. F16 and BF16 rows are multiplied a few rows and columns at a time as they lie by AVX-512 (`x86::float_tiles`), and by
//! AVX2 with columns that were packed once (`x86::float_panels`). F32 rows are added up in the order of dense products
//! (`f32_rows`), which are faster with many columns. Which instructions
//! do it is found out once ([`Instructions`]); rows are shared out among
//! rayon's threads, or, where a product is short and its memory can be shared ([`SharedRows`]), among threads
//! that spin while they wait (`spinning_threads`). Outputs are written once and never read or filled before, column after column, as
//! the columns of activations are.
//!
//! What a sum is made of depends on the shapes and the instructions alone, not on the number of threads, and not on the number of columns
//! either: each column gives the bits that it gives alone, so a sequence gets the same tokens in any company. There are two exceptions with more
//! than [`ALIKE_COLUMNS`] columns: activations that are bf16 numbers (`--precision bf16`), and F16 and BF16 weights where there is no AVX-512.

mod activations;
#[cfg(target_arch = "x86_64")]
mod bf16_columns;
mod dispatch;
mod f32_rows;
mod float;
#[cfg(target_arch = "x86_64")]
mod float_columns;
mod group;
mod portable;
mod shared_rows;
mod spinning_threads;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

pub use activations::Activations;
pub use dispatch::Instructions;
pub use f32_rows::{DEEP, block_of, depth_blocks};
pub use shared_rows::SharedRows;
pub use spinning_threads::share_out;

use crate::block::{BlockError, BlockFormat};

/// Up to so many columns, each gives the same bits as it does alone in every case.
pub const ALIKE_COLUMNS: usize = FEW;
/// Up to so many columns, rows are multiplied one by one.
pub(crate) const FEW: usize = 8;
/// As many rows are interleaved for more columns.
pub(crate) const PANEL: usize = 16;
/// Parts for each thread, so that one which is kept waiting doesn't keep the others.
const PARTS: usize = 4;
/// About so many numbers of columns are packed at once.
const PACKED_NUMBERS: usize = 2 << 20;
/// Below so many multiplications a product is over before other threads have begun.
const WORTH_SPLITTING: usize = 1 << 18;

/// Why a product can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProductError {
    /// The weights are not what they are said to be.
    #[error("the weights can't be used: {0}")]
    Weights(#[from] BlockError),
    /// More numbers than can be addressed.
    #[error("{rows} rows of {cols} numbers are more than can be addressed")]
    TooLarge {
        /// Rows of weights.
        rows: usize,
        /// Numbers of a row.
        cols: usize,
    },
    /// Activations of another length than the rows of the weights.
    #[error("the weights have {cols} numbers a row, but each column has {inputs}")]
    Inputs {
        /// Numbers of a row of weights.
        cols: usize,
        /// Numbers of a column.
        inputs: usize,
    },
    /// A slice that is too short or too long.
    #[error("{what} must have {expected} numbers, not {actual}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// The length it should have.
        expected: usize,
        /// The length it has.
        actual: usize,
    },
    /// Weights that are not multiplied with quantised activations.
    #[error("weights in {0} are multiplied with f32 numbers: call `times`")]
    NotQuantized(BlockFormat),
}

/// Rows of a matrix in their blocks. Rows are outputs, the numbers of a row are inputs.
#[derive(Clone, Copy, Debug)]
pub struct PackedRows<'a> {
    format: BlockFormat,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    blocks: &'a [u8],
}

impl<'a> PackedRows<'a> {
    /// `rows` rows of `cols` numbers each, stored as `format` in `blocks`.
    pub fn new(
        format: BlockFormat,
        rows: usize,
        cols: usize,
        blocks: &'a [u8],
    ) -> Result<Self, ProductError> {
        let row_bytes = format.bytes_of(cols)?;
        let (Some(numbers), Some(expected)) = (rows.checked_mul(cols), rows.checked_mul(row_bytes))
        else {
            return Err(ProductError::TooLarge { rows, cols });
        };
        if blocks.len() != expected {
            let bytes = blocks.len();
            return Err(BlockError::WrongLength { format, numbers, expected, bytes }.into());
        }
        Ok(Self { format, rows, cols, row_bytes, blocks })
    }

    /// How the numbers are stored.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// The product with `columns` columns of f32 numbers, one after the other in `x`. `out` gets a column for
    /// each of them, with a number for each row of the weights.
    pub fn times(&self, x: &[f32], columns: usize, out: &mut [f32]) -> Result<(), ProductError> {
        self.times_with(Instructions::best(), x, columns, out)
    }

    /// [`Self::times`] with these instructions.
    pub fn times_with(
        &self,
        instructions: Instructions,
        x: &[f32],
        columns: usize,
        out: &mut [f32],
    ) -> Result<(), ProductError> {
        if self.format.is_quantized() {
            let x = Activations::with(instructions, x, self.cols, columns)?;
            return self.times_quantized(&x, out);
        }
        activations::check(x, self.cols, columns)?;
        self.check(columns, out)?;
        let at_once = columns_at_once(self.cols);
        if columns > at_once && self.rows > 0 {
            let outs = out.chunks_mut(at_once * self.rows);
            return x.chunks(at_once * self.cols).zip(outs).try_for_each(|(x, out)| {
                self.times_with(instructions, x, x.len() / self.cols, out)
            });
        }
        if let Some(product) =
            dispatch::many_floats(instructions, self.format, x, self.cols, columns)
        {
            self.share_out(columns, out, |rows, out| product(rows, self.row_bytes, out));
            return Ok(());
        }
        self.share_out(columns, out, |rows, out| {
            dispatch::float(instructions, self.format, rows, self.row_bytes, x, self.cols, out);
        });
        Ok(())
    }

    /// [`Self::times`] with activations that are quantised already: the same can be used for several weights.
    pub fn times_quantized(&self, x: &Activations, out: &mut [f32]) -> Result<(), ProductError> {
        if !self.format.is_quantized() {
            return Err(ProductError::NotQuantized(self.format));
        }
        if x.inputs() != self.cols {
            return Err(ProductError::Inputs { cols: self.cols, inputs: x.inputs() });
        }
        self.check(x.columns(), out)?;
        self.share_out(x.columns(), out, |rows, out| {
            dispatch::quantized(self.format, rows, self.row_bytes, x, out);
        });
        Ok(())
    }

    fn check(&self, columns: usize, out: &[f32]) -> Result<(), ProductError> {
        match self.rows.checked_mul(columns) {
            Some(expected) if expected == out.len() => Ok(()),
            expected => Err(ProductError::Length {
                what: "the output",
                expected: expected.unwrap_or(usize::MAX),
                actual: out.len(),
            }),
        }
    }

    /// Calls `product` with some of the rows and their part of each column of the output, until all are done.
    fn share_out(
        &self,
        columns: usize,
        out: &mut [f32],
        product: impl Fn(&[u8], &mut [&mut [f32]]) + Sync,
    ) {
        if out.is_empty() {
            return;
        }
        if self.cols == 0 {
            return out.fill(0.0);
        }
        let part = rows_of_part(self.rows, self.cols, columns, rayon::current_num_threads());
        let mut parts: Vec<Vec<&mut [f32]>> = Vec::new();
        parts.resize_with(self.rows.div_ceil(part), || Vec::with_capacity(columns));
        for column in out.chunks_exact_mut(self.rows) {
            parts.iter_mut().zip(column.chunks_mut(part)).for_each(|(part, out)| part.push(out));
        }
        if let [out] = &mut parts[..] {
            return product(self.blocks, out);
        }
        if rayon::current_thread_index().is_some() {
            let rows = self.blocks.par_chunks(part * self.row_bytes);
            return parts.par_iter_mut().zip(rows).for_each(|(out, rows)| product(rows, out));
        }
        // A thread that is none of rayon's begins at once and takes parts as the others do: it would sleep otherwise, and waking takes
        // as long as some products.
        let rows = self.blocks.chunks(part * self.row_bytes);
        let parts = Mutex::new(parts.iter_mut().zip(rows));
        let help = || {
            loop {
                let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((out, rows)) = next else { return };
                product(rows, out);
            }
        };
        rayon::in_place_scope(|scope| {
            for _ in 1..rayon::current_num_threads() {
                scope.spawn(|_| help());
            }
            help();
        });
    }
}

/// Columns that are packed at once, so that they take little memory.
fn columns_at_once(cols: usize) -> usize {
    match cols {
        0 => usize::MAX,
        _ => (PACKED_NUMBERS / cols).next_multiple_of(48),
    }
}

/// The rows that a thread takes at once.
fn rows_of_part(rows: usize, cols: usize, columns: usize, threads: usize) -> usize {
    match rows.saturating_mul(cols).saturating_mul(columns) {
        work if work < WORTH_SPLITTING => rows,
        _ => rows.div_ceil(PARTS * threads).next_multiple_of(PANEL).min(rows),
    }
}
