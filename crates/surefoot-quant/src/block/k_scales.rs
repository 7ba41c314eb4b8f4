//! Scales and offsets of 6 bits, packed into 12 bytes: eight of each (Q4_K, Q5_K) or sixteen scales
//! (Q3_K).

/// Eight scales and eight offsets. The first four of each are the low 6 bits of bytes 0 to 3 and 4 to 7.
/// Of the others, the low 4 bits are in bytes 8 to 11 and the high 2 bits above the first ones'.
#[inline(always)]
pub(super) fn unpack_pairs(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let [low, middle, high] =
        [0, 4, 8].map(|at| u32::from_le_bytes(std::array::from_fn(|byte| packed[at + byte])));
    // Four bytes at a time.
    let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
    let join = |first: u32, second: u32| (u64::from(first) | u64::from(second) << 32).to_le_bytes();
    let scale = join(low & six, high & four | (low >> 6 & two) << 4);
    let offset = join(middle & six, high >> 4 & four | (middle >> 6 & two) << 4);
    (scale, offset)
}

/// The reverse of [`unpack_pairs`].
pub(super) fn pack_pairs(scale: &[u8; 8], offset: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for at in 0..4 {
        packed[at] = scale[at] & 63 | scale[at + 4] >> 4 << 6;
        packed[at + 4] = offset[at] & 63 | offset[at + 4] >> 4 << 6;
        packed[at + 8] = scale[at + 4] & 15 | offset[at + 4] << 4;
    }
    packed
}

/// Sixteen scales: their low 4 bits are in bytes 0 to 7, the first eight below and the others above;
/// their high 2 bits are in bytes 8 to 11.
#[inline(always)]
pub(super) fn unpack_sixteen(packed: &[u8; 12]) -> [u8; 16] {
    std::array::from_fn(|at| {
        let low = packed[at % 8] >> (at / 8 * 4) & 15;
        let high = packed[8 + at % 4] >> (at / 4 * 2) & 3;
        low | high << 4
    })
}

/// The reverse of [`unpack_sixteen`].
pub(super) fn pack_sixteen(scale: &[u8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (at, scale) in scale.iter().enumerate() {
        packed[at % 8] |= (scale & 15) << (at / 8 * 4);
        packed[8 + at % 4] |= (scale >> 4 & 3) << (at / 4 * 2);
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(
            scale in prop::array::uniform8(0_u8..64), offset in prop::array::uniform8(0_u8..64),
            sixteen in prop::array::uniform16(0_u8..64), bytes in prop::array::uniform12(any::<u8>()),
        ) {
            prop_assert_eq!(unpack_pairs(&pack_pairs(&scale, &offset)), (scale, offset));
            prop_assert_eq!(unpack_sixteen(&pack_sixteen(&sixteen)), sixteen);
            // Every bit means something.
            let (scale, offset) = unpack_pairs(&bytes);
            prop_assert_eq!(pack_pairs(&scale, &offset), bytes);
            prop_assert_eq!(pack_sixteen(&unpack_sixteen(&bytes)), bytes);
        }
    }
}
