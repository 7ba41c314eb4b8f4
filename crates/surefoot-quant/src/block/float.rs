//! Floating point of 16 and 32 bits, little-endian as GGUF files have it.
//!
//! Rounding is the crate `half`'s. Widening is written out: in `half` it asks at each call what the
//! processor can do, which kernels that unpack many blocks can't afford.

use half::{bf16, f16};

use super::BlockFormat;

/// Exact, infinities and NaN included.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    // The exponent's bias is 15 in the one and 127 in the other. The product normalises what is subnormal.
    let finite = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    let magnitude = if rest < 0x7c00 { finite.to_bits() } else { rest << 13 | 0x7f80_0000 };
    f32::from_bits(sign | magnitude)
}

#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// From 2 or 4 bytes a number to f32.
#[inline(always)]
pub(crate) fn widen(format: BlockFormat, bytes: &[u8], numbers: &mut [f32]) {
    if format == BlockFormat::F32 {
        for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *number = f32::from_le_bytes(*bytes);
        }
        return;
    }
    let halves = numbers.iter_mut().zip(bytes.as_chunks::<2>().0);
    if format == BlockFormat::F16 {
        halves.for_each(|(number, bytes)| *number = f16_to_f32(u16::from_le_bytes(*bytes)));
    } else {
        halves.for_each(|(number, bytes)| *number = bf16_to_f32(u16::from_le_bytes(*bytes)));
    }
}

/// From f32 to 2 or 4 bytes a number.
pub(super) fn narrow(format: BlockFormat, numbers: &[f32], bytes: &mut [u8]) {
    if format == BlockFormat::F32 {
        for (number, bytes) in numbers.iter().zip(bytes.as_chunks_mut::<4>().0) {
            *bytes = number.to_le_bytes();
        }
        return;
    }
    let halves = numbers.iter().zip(bytes.as_chunks_mut::<2>().0);
    if format == BlockFormat::F16 {
        halves.for_each(|(number, bytes)| *bytes = f16::from_f32(*number).to_le_bytes());
    } else {
        halves.for_each(|(number, bytes)| *bytes = bf16::from_f32(*number).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition of the format, in f64.
    fn by_definition(bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
        let magnitude = match exponent {
            0 => fraction * 2_f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
        };
        if bits & 0x8000 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_half_is_what_its_definition_says() {
        for bits in 0..=u16::MAX {
            let (number, expected) = (f16_to_f32(bits), by_definition(bits));
            assert!(
                f64::from(number) == expected || number.is_nan() && expected.is_nan(),
                "{bits:#06x}: {number}"
            );
            assert_eq!(number.is_sign_negative(), bits & 0x8000 != 0);
            let wide = bf16_to_f32(bits);
            assert_eq!(wide.to_bits(), u32::from(bits) << 16);
        }
    }
}
