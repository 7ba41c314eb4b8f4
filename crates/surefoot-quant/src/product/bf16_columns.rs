//! Columns of activations whose numbers bf16 holds exactly, packed for dot products of pairs.

use rayon::prelude::*;

/// Columns of bf16 numbers, two in each word: the first in the lower half. A column of odd length ends with a zero.
#[derive(Clone, Debug)]
pub(super) struct Bf16Columns {
    words: Vec<u32>,
    pairs: usize,
}

impl Bf16Columns {
    /// Packs columns of `inputs` numbers each. None where a number has more bits than bf16 has: it is not rounded.
    pub(super) fn exact(x: &[f32], inputs: usize) -> Option<Self> {
        // Most activations show it at once.
        if inputs == 0 || !x.iter().take(inputs).all(is_bf16) {
            return None;
        }
        let pairs = inputs.div_ceil(2);
        let mut words = vec![0; pairs * (x.len() / inputs)];
        let all = words.par_chunks_mut(pairs).zip(x.par_chunks(inputs)).all(|(words, column)| {
            let (pairs, single) = column.as_chunks::<2>();
            let mut other_bits = 0;
            for (word, [first, second]) in words.iter_mut().zip(pairs) {
                other_bits |= (first.to_bits() | second.to_bits()) & 0xffff;
                *word = first.to_bits() >> 16 | second.to_bits() & 0xffff_0000;
            }
            if let ([single], Some(word)) = (single, words.last_mut()) {
                other_bits |= single.to_bits() & 0xffff;
                *word = single.to_bits() >> 16;
            }
            other_bits == 0
        });
        all.then_some(Self { words, pairs })
    }

    /// The words of a column.
    pub(super) fn pairs(&self) -> usize {
        self.pairs
    }

    pub(super) fn column(&self, at: usize) -> &[u32] {
        &self.words[at * self.pairs..(at + 1) * self.pairs]
    }
}

fn is_bf16(number: &f32) -> bool {
    number.to_bits() & 0xffff == 0
}
