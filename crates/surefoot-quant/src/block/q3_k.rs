//! Q3_K: 256 numbers in 110 bytes.
//!
//! Bytes 0 to 31: the third bits; bit `j` of byte `i` belongs to number `32 j + i`. Bytes 32 to 95: the
//! lower 2 bits, in the order of Q2_K. Then 12 bytes with sixteen scales of 6 bits, 32 too large, and the
//! scale of the scales.

use super::q2_k::two_bits;
use super::{BlockFormat, Blocks, f16_to_f32, k_scales};

#[derive(Debug)]
pub(crate) struct Q3K;

impl Blocks for Q3K {
    const FORMAT: BlockFormat = BlockFormat::Q3_K;
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const SUB: usize = 16;
    const ZERO: u8 = 4;

    #[inline(always)]
    fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]) {
        let (Some(block), Some(q), Some(scale), Some(add)) = (
            block.first_chunk::<110>(),
            q.first_chunk_mut::<256>(),
            scale.first_chunk_mut::<16>(),
            add.first_chunk_mut::<16>(),
        ) else {
            return;
        };
        let d = f16_to_f32(u16::from_le_bytes([block[108], block[109]]));
        let Some(packed) = block[96..].first_chunk::<12>() else { return };
        for (scale, integer) in scale.iter_mut().zip(k_scales::unpack_sixteen(packed)) {
            *scale = d * (f32::from(integer) - 32.0);
        }
        *add = [0.0; 16];
        two_bits(&block[32..96], q);
        for (bit, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (q, byte) in q.iter_mut().zip(&block[..32]) {
                *q |= (byte >> bit & 1) << 2;
            }
        }
    }
}
