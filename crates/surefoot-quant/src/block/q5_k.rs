//! Q5_K: 256 numbers in 176 bytes.
//!
//! As Q4_K, but between the scales and the 4 bits a number are 32 bytes with the fifth bits: bit `j` of
//! byte `i` belongs to number `32 j + i`.

use super::q4_k::{four_bits, scales_and_offsets};
use super::{BlockFormat, Blocks};

#[derive(Debug)]
pub(crate) struct Q5K;

impl Blocks for Q5K {
    const FORMAT: BlockFormat = BlockFormat::Q5_K;
    const LEN: usize = 256;
    const BYTES: usize = 176;
    const SUB: usize = 32;
    const ZERO: u8 = 0;

    #[inline(always)]
    fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]) {
        let (Some(block), Some(q)) = (block.first_chunk::<176>(), q.first_chunk_mut::<256>())
        else {
            return;
        };
        scales_and_offsets(block, scale, add);
        four_bits(&block[48..], q);
        for (bit, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (q, byte) in q.iter_mut().zip(&block[16..48]) {
                *q |= (byte >> bit & 1) << 4;
            }
        }
    }
}
