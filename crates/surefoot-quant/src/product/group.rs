//! 256 numbers of a row of weights, unpacked.

use crate::block::Blocks;

/// Unpacked weights: a number is `scale · q + offset` with the scale and offset of its sub-block.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct WeightGroup {
    pub(super) q: [u8; 256],
    pub(super) scale: [f32; 16],
    pub(super) offset: [f32; 16],
}

impl WeightGroup {
    pub(super) const EMPTY: Self = Self { q: [0; 256], scale: [0.0; 16], offset: [0.0; 16] };

    /// The bytes of 256 numbers.
    pub(super) const fn bytes<B: Blocks>() -> usize {
        256 / B::LEN * B::BYTES
    }

    /// Unpacks up to 256 numbers. If there are fewer, the scales and offsets of the others are 0.
    #[inline(always)]
    pub(super) fn unpack<B: Blocks>(&mut self, blocks: &[u8]) {
        let subs = B::LEN / B::SUB;
        if blocks.len() < Self::bytes::<B>() {
            (self.scale, self.offset) = ([0.0; 16], [0.0; 16]);
        }
        let scales = self.scale.chunks_exact_mut(subs).zip(self.offset.chunks_exact_mut(subs));
        let parts = self.q.chunks_exact_mut(B::LEN).zip(scales);
        for ((q, (scale, offset)), block) in parts.zip(blocks.chunks_exact(B::BYTES)) {
            B::unpack(block, q, scale, offset);
            for (scale, offset) in scale.iter().zip(offset) {
                *offset -= f32::from(B::ZERO) * scale;
            }
        }
    }
}
