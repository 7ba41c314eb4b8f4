//! Q4_K: 256 numbers in 144 bytes.
//!
//! The scale of the scales and that of the offsets, 12 bytes with eight scales and eight offsets of 6
//! bits, then 4 bits a number; of each quarter of 64 numbers, byte `i` of 32 holds number `i` below and
//! number `i + 32` above.

use super::{BlockFormat, Blocks, f16_to_f32, k_scales};

#[derive(Debug)]
pub(crate) struct Q4K;

impl Blocks for Q4K {
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const SUB: usize = 32;
    const ZERO: u8 = 0;

    #[inline(always)]
    fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]) {
        let (Some(block), Some(q)) = (block.first_chunk::<144>(), q.first_chunk_mut::<256>())
        else {
            return;
        };
        scales_and_offsets(block, scale, add);
        four_bits(&block[16..], q);
    }
}

/// From the 16 bytes that Q4_K and Q5_K begin with.
#[inline(always)]
pub(crate) fn scales_and_offsets(block: &[u8], scale: &mut [f32], add: &mut [f32]) {
    let (Some(header), Some(scale), Some(add)) =
        (block.first_chunk::<16>(), scale.first_chunk_mut::<8>(), add.first_chunk_mut::<8>())
    else {
        return;
    };
    let d = f16_to_f32(u16::from_le_bytes([header[0], header[1]]));
    let least = f16_to_f32(u16::from_le_bytes([header[2], header[3]]));
    let Some(packed) = header[4..].first_chunk::<12>() else { return };
    let (integers, offsets) = k_scales::unpack_pairs(packed);
    for at in 0..8 {
        scale[at] = d * f32::from(integers[at]);
        add[at] = -(least * f32::from(offsets[at]));
    }
}

/// 128 bytes into 256 integers; Q5_K has the same order.
#[inline(always)]
pub(super) fn four_bits(packed: &[u8], q: &mut [u8; 256]) {
    for (packed, q) in packed.as_chunks::<32>().0.iter().zip(q.as_chunks_mut::<64>().0) {
        for (at, byte) in packed.iter().enumerate() {
            q[at] = byte & 15;
            q[at + 32] = byte >> 4;
        }
    }
}

/// The reverse of [`four_bits`], of the lowest 4 bits of each.
pub(super) fn pack_four_bits(q: &[u8; 256]) -> [u8; 128] {
    let mut packed = [0; 128];
    for (packed, q) in packed.as_chunks_mut::<32>().0.iter_mut().zip(q.as_chunks::<64>().0) {
        for (at, byte) in packed.iter_mut().enumerate() {
            *byte = q[at] & 15 | q[at + 32] << 4;
        }
    }
    packed
}
