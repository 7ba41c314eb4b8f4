//! The formats of 32 numbers a block, with one scale and sometimes an offset in half precision.
//!
//! Packed integers of 4 bits: byte `i` holds number `i` below and number `i + 16` above. A fifth
//! bit of number `i` is bit `i` of a word of 32 bits.

use half::f16;

use super::{BlockFormat, Blocks, f16_to_f32};

#[inline(always)]
fn half_at<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[inline(always)]
fn nibbles(packed: &[u8], q: &mut [u8; 32]) {
    for (at, byte) in packed.iter().take(16).enumerate() {
        q[at] = byte & 15;
        q[at + 16] = byte >> 4;
    }
}

#[inline(always)]
fn fifth_bits(bits: u32, q: &mut [u8; 32]) {
    for (at, q) in q.iter_mut().enumerate() {
        *q |= ((bits >> at & 1) as u8) << 4;
    }
}

macro_rules! simple_format {
    ($(#[$doc:meta])* $name:ident, $format:ident, $bytes:literal, $zero:literal, $with_offset:literal, $integers:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Blocks for $name {
            const FORMAT: BlockFormat = BlockFormat::$format;
            const LEN: usize = 32;
            const BYTES: usize = $bytes;
            const SUB: usize = 32;
            const ZERO: u8 = $zero;

            #[inline(always)]
            fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]) {
                let (Some(block), Some(q)) = (block.first_chunk::<$bytes>(), q.first_chunk_mut::<32>())
                else {
                    return;
                };
                if let (Some(scale), Some(add)) = (scale.first_mut(), add.first_mut()) {
                    *scale = half_at(block, 0);
                    *add = if $with_offset { half_at(block, 2) } else { 0.0 };
                }
                let integers: fn(&[u8; $bytes], &mut [u8; 32]) = $integers;
                integers(block, q);
            }
        }
    };
}

simple_format!(
    /// A scale, then 4 bits a number.
    Q40, Q4_0, 18, 8, false, |block, q| nibbles(&block[2..], q)
);
simple_format!(
    /// A scale, an offset, then 4 bits a number.
    Q41, Q4_1, 20, 0, true, |block, q| nibbles(&block[4..], q)
);
/// A scale, a whole zero point, then 4 bits a number: what GPTQ and AWQ store, without rounding.
#[derive(Debug)]
pub(crate) struct Q4ZP;

impl Blocks for Q4ZP {
    const FORMAT: BlockFormat = BlockFormat::Q4_ZP;
    const LEN: usize = 32;
    const BYTES: usize = 19;
    const SUB: usize = 32;
    const ZERO: u8 = 0;

    #[inline(always)]
    fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]) {
        let (Some(block), Some(q)) = (block.first_chunk::<19>(), q.first_chunk_mut::<32>()) else {
            return;
        };
        if let (Some(scale), Some(add)) = (scale.first_mut(), add.first_mut()) {
            *scale = half_at(block, 0);
            // Of 11 bits times 8: exact.
            *add = -*scale * f32::from(block[2]);
        }
        nibbles(&block[3..], q);
    }
}

simple_format!(
    /// A scale, the fifth bits, then 4 bits a number.
    Q50, Q5_0, 22, 16, false, |block, q| {
        nibbles(&block[6..], q);
        fifth_bits(u32::from_le_bytes([block[2], block[3], block[4], block[5]]), q);
    }
);
simple_format!(
    /// A scale, an offset, the fifth bits, then 4 bits a number.
    Q51, Q5_1, 24, 0, true, |block, q| {
        nibbles(&block[8..], q);
        fifth_bits(u32::from_le_bytes([block[4], block[5], block[6], block[7]]), q);
    }
);
simple_format!(
    /// A scale, then 8 bits a number, which are signed in the file.
    Q80, Q8_0, 34, 128, false, |block, q| {
        for (q, byte) in q.iter_mut().zip(&block[2..]) {
            *q = byte ^ 0x80;
        }
    }
);

/// The number that is farthest from 0, with its sign; of equals the first.
fn farthest(numbers: &[f32; 32]) -> f32 {
    numbers.iter().fold(
        0.0_f32,
        |most, number| {
            if number.abs() > most.abs() { *number } else { most }
        },
    )
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn packed(q: &[u8; 32], target: &mut [u8]) {
    for (at, byte) in target.iter_mut().enumerate() {
        *byte = q[at] & 15 | q[at + 16] << 4;
    }
}

fn packed_fifth_bits(q: &[u8; 32]) -> [u8; 4] {
    let bit = |bits, (at, q): (usize, &u8)| bits | u32::from(q >> 4 & 1) << at;
    q.iter().enumerate().fold(0_u32, bit).to_le_bytes()
}

/// The number that is farthest from 0 becomes −`zero` exactly, and the others follow.
fn symmetric(numbers: &[f32; 32], zero: f32) -> (f32, [u8; 32]) {
    let scale = farthest(numbers) / -zero;
    let inverse = inverse(scale);
    let most = 2.0 * zero - 1.0;
    (scale, numbers.map(|number| (number * inverse + zero + 0.5).trunc().clamp(0.0, most) as u8))
}

/// The least becomes 0 and the largest `most`.
fn between(numbers: &[f32; 32], most: f32) -> (f32, f32, [u8; 32]) {
    let least = numbers.iter().copied().fold(f32::INFINITY, f32::min);
    let largest = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (largest - least) / most;
    let inverse = inverse(scale);
    let q = numbers.map(|number| ((number - least) * inverse + 0.5).trunc().clamp(0.0, most) as u8);
    (scale, least, q)
}

fn half_bytes(number: f32) -> [u8; 2] {
    f16::from_f32(number).to_le_bytes()
}

pub(super) fn quantize_q4_0(numbers: &[f32; 32]) -> [u8; 18] {
    let mut block = [0; 18];
    let (scale, q) = symmetric(numbers, 8.0);
    block[..2].copy_from_slice(&half_bytes(scale));
    packed(&q, &mut block[2..]);
    block
}

pub(super) fn quantize_q4_1(numbers: &[f32; 32]) -> [u8; 20] {
    let mut block = [0; 20];
    let (scale, least, q) = between(numbers, 15.0);
    block[..2].copy_from_slice(&half_bytes(scale));
    block[2..4].copy_from_slice(&half_bytes(least));
    packed(&q, &mut block[4..]);
    block
}

/// 0 is among the numbers that a block holds exactly.
pub(super) fn quantize_q4_zp(numbers: &[f32; 32]) -> [u8; 19] {
    let mut block = [0; 19];
    let least = numbers.iter().copied().fold(0.0, f32::min);
    let largest = numbers.iter().copied().fold(0.0, f32::max);
    let scale = (largest - least) / 15.0;
    let inverse = inverse(scale);
    let zero = (-least * inverse).round().clamp(0.0, 15.0);
    let q = numbers.map(|number| (number * inverse + zero).round().clamp(0.0, 15.0) as u8);
    block[..2].copy_from_slice(&half_bytes(scale));
    block[2] = zero as u8;
    packed(&q, &mut block[3..]);
    block
}

pub(super) fn quantize_q5_0(numbers: &[f32; 32]) -> [u8; 22] {
    let mut block = [0; 22];
    let (scale, q) = symmetric(numbers, 16.0);
    block[..2].copy_from_slice(&half_bytes(scale));
    block[2..6].copy_from_slice(&packed_fifth_bits(&q));
    packed(&q, &mut block[6..]);
    block
}

pub(super) fn quantize_q5_1(numbers: &[f32; 32]) -> [u8; 24] {
    let mut block = [0; 24];
    let (scale, least, q) = between(numbers, 31.0);
    block[..2].copy_from_slice(&half_bytes(scale));
    block[2..4].copy_from_slice(&half_bytes(least));
    block[4..8].copy_from_slice(&packed_fifth_bits(&q));
    packed(&q, &mut block[8..]);
    block
}

pub(super) fn quantize_q8_0(numbers: &[f32; 32]) -> [u8; 34] {
    let mut block = [0; 34];
    let scale = farthest(numbers).abs() / 127.0;
    let inverse = inverse(scale);
    block[..2].copy_from_slice(&half_bytes(scale));
    for (byte, number) in block[2..].iter_mut().zip(numbers) {
        // Half a step goes away from 0, as `round` does.
        *byte = (number * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
    }
    block
}
