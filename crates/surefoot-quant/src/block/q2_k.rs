//! Q2_K: 256 numbers in 84 bytes.
//!
//! Bytes 0 to 15: for 16 numbers each, a scale below and an offset above, of 4 bits. Bytes 16 to 79:
//! 2 bits a number; of each half of 128 numbers, byte `i` of 32 holds the numbers `i`, `i + 32`,
//! `i + 64` and `i + 96`, the first in the lowest bits. Then the scale of the scales and that of the offsets.

use super::{BlockFormat, Blocks, f16_to_f32};

#[derive(Debug)]
pub(crate) struct Q2K;

impl Blocks for Q2K {
    const FORMAT: BlockFormat = BlockFormat::Q2_K;
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const SUB: usize = 16;
    const ZERO: u8 = 0;

    #[inline(always)]
    fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]) {
        let (Some(block), Some(q), Some(scale), Some(add)) = (
            block.first_chunk::<84>(),
            q.first_chunk_mut::<256>(),
            scale.first_chunk_mut::<16>(),
            add.first_chunk_mut::<16>(),
        ) else {
            return;
        };
        let d = f16_to_f32(u16::from_le_bytes([block[80], block[81]]));
        let least = f16_to_f32(u16::from_le_bytes([block[82], block[83]]));
        for at in 0..16 {
            scale[at] = d * f32::from(block[at] & 15);
            add[at] = -(least * f32::from(block[at] >> 4));
        }
        two_bits(&block[16..80], q);
    }
}

/// 64 bytes into 256 integers; Q3_K has the same order.
#[inline(always)]
pub(super) fn two_bits(packed: &[u8], q: &mut [u8; 256]) {
    for (packed, q) in packed.as_chunks::<32>().0.iter().zip(q.as_chunks_mut::<128>().0) {
        for (shift, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (q, byte) in q.iter_mut().zip(packed) {
                *q = byte >> (2 * shift) & 3;
            }
        }
    }
}

/// The reverse of [`two_bits`], of the lowest 2 bits of each.
pub(super) fn pack_two_bits(q: &[u8; 256]) -> [u8; 64] {
    let mut packed = [0; 64];
    for (packed, q) in packed.as_chunks_mut::<32>().0.iter_mut().zip(q.as_chunks::<128>().0) {
        for (shift, q) in q.as_chunks::<32>().0.iter().enumerate() {
            for (byte, q) in packed.iter_mut().zip(q) {
                *byte |= (q & 3) << (2 * shift);
            }
        }
    }
    packed
}
