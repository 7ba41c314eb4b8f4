//! Blocks in the form that tensor libraries of GPUs compute with: signed integers of 4 or 8 bits, and for each group of 16
//! or 32 of them a scale and, where the format has any, an offset. A number is `scale · integer + offset`.
//!
//! No number is rounded: formats of up to 4 bits become 4 bits, those of 5 to 8 bits become 8.

use super::{
    BlockError, BlockFormat, Blocks, Q2K, Q3K, Q4K, Q4ZP, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80,
};
use BlockFormat::*;

/// Numbers as signed integers with scales and offsets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SignedBlocks {
    /// Integers, the first in the lowest bits of each word.
    pub words: Vec<u32>,
    /// One for each group.
    pub scales: Vec<f32>,
    /// One for each group; empty where the format has none.
    pub offsets: Vec<f32>,
}

impl BlockFormat {
    /// The bits of an integer in [`SignedBlocks`].
    pub const fn signed_bits(self) -> usize {
        match self {
            Q4_0 | Q4_1 | Q2_K | Q3_K | Q4_K | Q4_ZP => 4,
            Q5_0 | Q5_1 | Q8_0 | Q5_K | Q6_K => 8,
            F32 => 32,
            F16 | BF16 => 16,
        }
    }

    /// The numbers that share a scale.
    pub const fn group_len(self) -> usize {
        match self {
            Q2_K | Q3_K | Q6_K => 16,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q4_ZP => 32,
            F32 | F16 | BF16 => 1,
        }
    }

    /// Whether groups have offsets in [`SignedBlocks`].
    pub const fn has_offsets(self) -> bool {
        matches!(self, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K | Q4_ZP)
    }

    /// The bytes of `numbers` numbers as [`SignedBlocks`].
    pub const fn signed_bytes(self, numbers: usize) -> usize {
        let groups = if self.is_quantized() { numbers / self.group_len() } else { 0 };
        let offsets = if self.has_offsets() { groups } else { 0 };
        numbers * self.signed_bits() / 8 + 4 * (groups + offsets)
    }

    /// Takes whole blocks apart. None where the format is not quantised.
    pub fn signed(self, blocks: &[u8]) -> Result<Option<SignedBlocks>, BlockError> {
        let numbers = blocks.len() / self.block_bytes() * self.block_len();
        self.check(blocks.len(), numbers)?;
        Ok(Some(match self {
            F32 | F16 | BF16 => return Ok(None),
            Q4_0 => signed::<Q40>(blocks),
            Q4_1 => signed::<Q41>(blocks),
            Q5_0 => signed::<Q50>(blocks),
            Q5_1 => signed::<Q51>(blocks),
            Q8_0 => signed::<Q80>(blocks),
            Q2_K => signed::<Q2K>(blocks),
            Q3_K => signed::<Q3K>(blocks),
            Q4_K => signed::<Q4K>(blocks),
            Q5_K => signed::<Q5K>(blocks),
            Q6_K => signed::<Q6K>(blocks),
            Q4_ZP => signed::<Q4ZP>(blocks),
        }))
    }
}

fn signed<B: Blocks>(blocks: &[u8]) -> SignedBlocks {
    let (bits, subs) = (B::FORMAT.signed_bits(), B::LEN / B::SUB);
    // Unsigned integers of 4 bits are brought into the range of signed ones, and the offset makes up for it.
    let zero = if B::ZERO == 0 && bits == 4 { 8 } else { B::ZERO };
    let (count, mask) = (blocks.len() / B::BYTES, (1_u32 << bits) - 1);
    let mut found = SignedBlocks {
        words: Vec::with_capacity(count * B::LEN * bits / 32),
        scales: Vec::with_capacity(count * subs),
        offsets: Vec::new(),
    };
    let (mut q, mut scale, mut add) = ([0; 256], [0.0; 16], [0.0; 16]);
    for block in blocks.chunks_exact(B::BYTES) {
        B::unpack(block, &mut q, &mut scale, &mut add);
        found.words.extend(q[..B::LEN].chunks_exact(32 / bits).map(|integers| {
            integers.iter().enumerate().fold(0, |word, (at, q)| {
                word | (u32::from(q.wrapping_sub(zero)) & mask) << (at * bits)
            })
        }));
        found.scales.extend(&scale[..subs]);
        if B::FORMAT.has_offsets() {
            let moved = f32::from(zero) - f32::from(B::ZERO);
            let offsets = scale.iter().zip(&add).map(|(scale, add)| add + scale * moved);
            found.offsets.extend(offsets.take(subs));
        }
    }
    found
}
