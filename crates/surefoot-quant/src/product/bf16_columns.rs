//! Columns of activations whose numbers bf16 holds exactly, packed for dot products of pairs.
//!
//! A tile of columns lies interleaved, word by word: a kernel reads it from one place. Columns of their own, a power of two apart, would
//! push each other out of the first-level cache.

use rayon::prelude::*;

/// Columns whose sums the registers hold at once; an instruction takes six cycles, and there is one each cycle.
pub(super) const TILE: usize = 12;

/// Columns of bf16 numbers, two in each word: the first in the lower half. A column of odd length ends with a zero, and columns that
/// are missing in the last tile are zeros.
#[derive(Clone, Debug)]
pub(super) struct Bf16Columns {
    words: Vec<[u32; TILE]>,
    pairs: usize,
}

impl Bf16Columns {
    /// Packs columns of `inputs` numbers each. None where a number has more bits than bf16 has: it is not rounded.
    pub(super) fn exact(x: &[f32], inputs: usize) -> Option<Self> {
        // Most activations show it at once.
        if inputs == 0 || !x.iter().take(inputs).all(|number| other_bits(number) == 0) {
            return None;
        }
        let pairs = inputs.div_ceil(2);
        let mut words = vec![[0; TILE]; pairs * (x.len() / inputs).div_ceil(TILE)];
        let tiles = words.par_chunks_mut(pairs).zip(x.par_chunks(inputs * TILE));
        let all = tiles.map(|(words, columns)| {
            let mut other = 0;
            for (column, numbers) in columns.chunks_exact(inputs).enumerate() {
                let (two, single) = numbers.as_chunks::<2>();
                for (words, [first, second]) in words.iter_mut().zip(two) {
                    other |= other_bits(first) | other_bits(second);
                    words[column] = (first.to_bits() >> 16) | (second.to_bits() & 0xffff_0000);
                }
                if let ([single], Some(words)) = (single, words.last_mut()) {
                    other |= other_bits(single);
                    words[column] = single.to_bits() >> 16;
                }
            }
            other == 0
        });
        let all = all.reduce(|| true, |one, other| one && other);
        all.then_some(Self { words, pairs })
    }

    /// The words of a column.
    pub(super) fn pairs(&self) -> usize {
        self.pairs
    }

    /// The words of each tile, one tile after the other.
    pub(super) fn tiles(&self) -> impl ExactSizeIterator<Item = &[[u32; TILE]]> {
        self.words.chunks_exact(self.pairs)
    }
}

/// The bits of a number that bf16 doesn't have.
fn other_bits(number: &f32) -> u32 {
    number.to_bits() & 0xffff
}
