//! The right side of a product, packed in panels as wide as a tile.
//!
//! Blocks of the depth one after the other, in each the panels, in each the depth's numbers, [`Line`] by line. The
//! memory is kept from product to product, up to a number of bytes: what is packed overwrites all that is read of it.
//!
//! Panels belong to the `Arch` that they were packed for. Only this crate makes them.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use surefoot_quant::product::block_of;

use super::View;
use super::kernel::tile;

/// Numbers side by side: where a vector of any sort may begin.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LINE]);

pub(super) const LINE: usize = 16;

/// Memory for panels that nobody uses now. One product at a time needs one, each head of attention on each thread up to four, and a
/// convolution by Winograd one for each of its points.
static SPARE: Mutex<Spare> = Mutex::new(Spare { buffers: Vec::new(), bytes: 0 });
/// More bytes are not kept: the memory of large panels goes back when they are done.
const MOST_SPARE: usize = 64 << 20;

struct Spare {
    buffers: Vec<Vec<Line>>,
    bytes: usize,
}

impl Spare {
    fn take(&mut self) -> Vec<Line> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= bytes_of(&buffer);
        buffer
    }

    fn keep(&mut self, buffer: Vec<Line>) {
        let bytes = bytes_of(&buffer);
        if bytes > 0 && self.bytes + bytes <= MOST_SPARE {
            self.bytes += bytes;
            self.buffers.push(buffer);
        }
    }
}

fn bytes_of(buffer: &Vec<Line>) -> usize {
    buffer.capacity() * size_of::<Line>()
}

/// Columns of the right side, packed.
pub(crate) struct Panels {
    lines: Vec<Line>,
    pub(super) depth: usize,
    pub(super) columns: usize,
    /// Numbers of the depth in a block, but for the last.
    pub(super) block: usize,
    /// Lines side by side in a panel.
    each: usize,
}

impl Panels {
    /// Memory for panels, which holds nothing yet.
    pub(crate) fn take() -> Self {
        let lines = SPARE.lock().unwrap_or_else(PoisonError::into_inner).take();
        Self { lines, depth: 0, columns: 0, block: 1, each: 1 }
    }

    /// Keeps the memory for others.
    pub(crate) fn give_back(self) {
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).keep(self.lines);
    }

    /// Packs some columns of `b`, which has `depth` rows; with all threads if it `splits`.
    pub(crate) fn pack(
        &mut self,
        arch: Arch,
        b: View<'_>,
        depth: usize,
        columns: Range<usize>,
        splits: bool,
    ) {
        let tile = tile(arch);
        (self.depth, self.columns, self.each) = (depth, columns.len(), tile.lines);
        self.block = block_of(depth);
        let (block, each) = (self.block, self.each);
        let panels = self.count();
        let lines = depth * panels * each;
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; LINE]));
        }
        let work = |at: usize, panel: usize, out: &mut [Line]| {
            let column = columns.start + panel * tile.columns();
            let count = tile.columns().min(columns.end - column);
            arch.dispatch(Pack { b, from: at * block, column, count, each, out });
        };
        for (at, out) in self.lines[..lines].chunks_mut(block * panels * each).enumerate() {
            let panel = out.len() / panels;
            match splits {
                true => {
                    out.par_chunks_mut(panel).enumerate().for_each(|(nth, out)| work(at, nth, out))
                }
                false => {
                    out.chunks_mut(panel).enumerate().for_each(|(nth, out)| work(at, nth, out))
                }
            }
        }
    }

    /// How many panels there are.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.columns.div_ceil(self.each * LINE)
    }

    /// The part of a panel for the numbers of the depth in `range`, which lies in one block.
    #[inline]
    pub(super) fn panel(&self, panel: usize, range: &Range<usize>) -> &[Line] {
        let start = range.start / self.block * self.block;
        let block = self.block.min(self.depth - start);
        let panel = start * self.count() + panel * block;
        let from = (panel + range.start - start) * self.each;
        &self.lines[from..from + range.len() * self.each]
    }
}

/// Fills one panel's part of a block.
struct Pack<'a> {
    b: View<'a>,
    from: usize,
    column: usize,
    count: usize,
    each: usize,
    out: &'a mut [Line],
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { b, from, column, count, each, out } = self;
        for nth in 0..each {
            let have = count.saturating_sub(nth * LINE).min(LINE);
            let column = column + nth * LINE;
            if have < LINE {
                out.iter_mut().skip(nth).step_by(each).for_each(|line| line.0 = [0.0; LINE]);
            }
            match b.transposed {
                _ if have == 0 => {}
                false => {
                    for (at, line) in out.iter_mut().skip(nth).step_by(each).enumerate() {
                        let numbers = &b.numbers[(from + at) * b.step + column..];
                        match have {
                            LINE => line.0.copy_from_slice(&numbers[..LINE]),
                            _ => line.0[..have].copy_from_slice(&numbers[..have]),
                        }
                    }
                }
                true => pack_transposed(b, from, column, have, each, &mut out[nth..]),
            }
        }
    }
}

/// Packs a line of a matrix whose columns lie side by side, a square of it at a time.
#[inline(always)]
fn pack_transposed(
    b: View<'_>,
    from: usize,
    column: usize,
    have: usize,
    each: usize,
    out: &mut [Line],
) {
    let depth = out.len().div_ceil(each);
    let whole = if have == LINE { depth / LINE * LINE } else { 0 };
    for at in (0..whole).step_by(LINE) {
        let mut square = [[0f32; LINE]; LINE];
        for (nth, row) in square.iter_mut().enumerate() {
            row.copy_from_slice(&b.numbers[(column + nth) * b.step + from + at..][..LINE]);
        }
        for nth in 0..LINE {
            let line = &mut out[(at + nth) * each].0;
            for (number, row) in line.iter_mut().zip(&square) {
                *number = row[nth];
            }
        }
    }
    for nth in 0..have {
        let numbers = &b.numbers[(column + nth) * b.step + from..][..depth];
        for (at, number) in numbers.iter().enumerate().skip(whole) {
            out[at * each].0[nth] = *number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_memory_is_kept_than_the_bound_says() {
        let mut spare = Spare { buffers: Vec::new(), bytes: 0 };
        let lines = |bytes: usize| Vec::with_capacity(bytes / size_of::<Line>());
        for _ in 0..5 {
            spare.keep(lines(MOST_SPARE / 4));
        }
        spare.keep(lines(MOST_SPARE + 64));
        assert_eq!((spare.buffers.len(), spare.bytes), (4, MOST_SPARE));
        assert_eq!(spare.take().capacity() * size_of::<Line>(), MOST_SPARE / 4);
        spare.keep(lines(64));
        assert_eq!((spare.buffers.len(), spare.bytes), (4, MOST_SPARE / 4 * 3 + 64));
        for _ in 0..6 {
            spare.take();
        }
        assert_eq!(spare.bytes, 0);
    }
}
