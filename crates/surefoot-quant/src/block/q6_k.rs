//! Q6_K: 256 numbers in 210 bytes.
//!
//! Of each half of 128 numbers: 64 bytes with the lower 4 bits, where byte `i` holds number `i` below and
//! number `i + 64` above. Then, for each half, 32 bytes with the upper 2 bits, where byte `i` holds those
//! of the numbers `i`, `i + 32`, `i + 64` and `i + 96`, the first in the lowest bits. Then sixteen scales
//! of 8 bits with a sign, and the scale of the scales.

use super::{BlockFormat, Blocks, f16_to_f32};

#[derive(Debug)]
pub(crate) struct Q6K;

impl Blocks for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const SUB: usize = 16;
    const ZERO: u8 = 32;

    #[inline(always)]
    fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]) {
        let (Some(block), Some(q), Some(scale), Some(add)) = (
            block.first_chunk::<210>(),
            q.first_chunk_mut::<256>(),
            scale.first_chunk_mut::<16>(),
            add.first_chunk_mut::<16>(),
        ) else {
            return;
        };
        let d = f16_to_f32(u16::from_le_bytes([block[208], block[209]]));
        for (scale, byte) in scale.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(*byte as i8);
        }
        *add = [0.0; 16];
        let low = block[..128].as_chunks::<64>().0;
        let high = block[128..192].as_chunks::<32>().0;
        for ((low, high), q) in low.iter().zip(high).zip(q.as_chunks_mut::<128>().0) {
            for at in 0..32 {
                q[at] = low[at] & 15 | (high[at] & 3) << 4;
                q[at + 32] = low[at + 32] & 15 | (high[at] >> 2 & 3) << 4;
                q[at + 64] = low[at] >> 4 | (high[at] >> 4 & 3) << 4;
                q[at + 96] = low[at + 32] >> 4 | high[at] >> 6 << 4;
            }
        }
    }
}

/// The lower 4 and the upper 2 bits of 256 integers.
pub(super) fn pack(q: &[u8; 256]) -> ([u8; 128], [u8; 64]) {
    let (mut low, mut high) = ([0; 128], [0; 64]);
    let halves = low.as_chunks_mut::<64>().0.iter_mut().zip(high.as_chunks_mut::<32>().0);
    for ((low, high), q) in halves.zip(q.as_chunks::<128>().0) {
        for (at, low) in low.iter_mut().enumerate() {
            *low = q[at] & 15 | q[at + 64] << 4;
        }
        for (at, high) in high.iter_mut().enumerate() {
            *high = (q[at] >> 4 & 3)
                | (q[at + 32] >> 4 & 3) << 2
                | (q[at + 64] >> 4 & 3) << 4
                | (q[at + 96] >> 4 & 3) << 6;
        }
    }
    (low, high)
}
