//! Quantisation to the formats of 256 numbers a block.
//!
//! First every sub-block finds its own scale and offset (`search`), then these are rounded to what the
//! block can store, and last the numbers are rounded with the scales and offsets as they will be read.

use half::f16;

use super::k_scales::{pack_pairs, pack_sixteen};
use super::search::{nearest, scale, scale_and_offset};
use super::{q2_k, q4_k, q6_k};

/// The largest half.
const LARGEST: f32 = 65504.0;

/// A half that is at least as far from 0 as `number`, so that what is divided by it stays in range;
/// among the smallest halves the difference is large.
fn half_beyond(number: f32) -> f16 {
    let number = number.clamp(-LARGEST, LARGEST);
    let half = f16::from_f32(number);
    match half.to_f32().abs() < number.abs() {
        true => f16::from_bits(half.to_bits() + 1),
        false => half,
    }
}

/// Scales and offsets of sub-blocks as integers of up to `steps`, and what they are multiplied with.
struct Rounded<const SUBS: usize> {
    d: f16,
    least: f16,
    scale: [u8; SUBS],
    offset: [u8; SUBS],
}

/// Scales, offsets and integers of sub-blocks with `scale · q − offset`.
fn with_offsets<const SUBS: usize>(
    numbers: &[f32; 256],
    most: f32,
    steps: f32,
) -> (Rounded<SUBS>, [u8; 256]) {
    let sub = 256 / SUBS;
    let (mut scales, mut offsets) = ([0.0_f32; SUBS], [0.0_f32; SUBS]);
    for (at, numbers) in numbers.chunks_exact(sub).enumerate() {
        (scales[at], offsets[at]) = scale_and_offset(numbers, most);
    }
    let largest = |numbers: &[f32; SUBS]| numbers.iter().copied().fold(0.0, f32::max);
    let d = half_beyond(largest(&scales) / steps);
    let least = half_beyond(largest(&offsets) / steps);
    let integers = |numbers: [f32; SUBS], d: f16| {
        numbers.map(|number| nearest(number, d.to_f32(), 0.0, steps, 0.0) as u8)
    };
    let (scale, offset) = (integers(scales, d), integers(offsets, least));
    let mut q = [0; 256];
    for (at, q) in q.iter_mut().enumerate() {
        let scale = d.to_f32() * f32::from(scale[at / sub]);
        let offset = least.to_f32() * f32::from(offset[at / sub]);
        *q = nearest(numbers[at] + offset, scale, 0.0, most, 0.0) as u8;
    }
    (Rounded { d, least, scale, offset }, q)
}

/// Scales of sub-blocks as integers from `-limit` to `limit - 1`, their scale, and integers from 0 to
/// `2 zero - 1` for `scale · (q − zero)`.
fn without_offsets(numbers: &[f32; 256], zero: f32, limit: f32) -> (f16, [i8; 16], [u8; 256]) {
    let mut scales = [0.0_f32; 16];
    for (scale_of, numbers) in scales.iter_mut().zip(numbers.as_chunks::<16>().0) {
        *scale_of = scale(numbers, -zero, zero - 1.0);
    }
    let farthest = scales
        .iter()
        .fold(0.0_f32, |far, scale| if scale.abs() > far.abs() { *scale } else { far });
    let d = half_beyond(farthest / -limit);
    let integers = scales.map(|scale| nearest(scale, d.to_f32(), -limit, limit - 1.0, 0.0) as i8);
    let mut q = [0; 256];
    for (at, q) in q.iter_mut().enumerate() {
        let scale = d.to_f32() * f32::from(integers[at / 16]);
        *q = (nearest(numbers[at], scale, -zero, zero - 1.0, 0.0) + zero) as u8;
    }
    (d, integers, q)
}

pub(super) fn q2_k(numbers: &[f32; 256]) -> [u8; 84] {
    let (rounded, q) = with_offsets::<16>(numbers, 3.0, 15.0);
    let mut block = [0; 84];
    for (byte, (scale, offset)) in block.iter_mut().zip(rounded.scale.iter().zip(rounded.offset)) {
        *byte = scale | offset << 4;
    }
    block[16..80].copy_from_slice(&q2_k::pack_two_bits(&q));
    block[80..82].copy_from_slice(&rounded.d.to_le_bytes());
    block[82..].copy_from_slice(&rounded.least.to_le_bytes());
    block
}

pub(super) fn q3_k(numbers: &[f32; 256]) -> [u8; 110] {
    let (d, scale, q) = without_offsets(numbers, 4.0, 32.0);
    let mut block = [0; 110];
    for (bit, q) in q.as_chunks::<32>().0.iter().enumerate() {
        for (byte, q) in block.iter_mut().zip(q) {
            *byte |= (q >> 2) << bit;
        }
    }
    block[32..96].copy_from_slice(&q2_k::pack_two_bits(&q));
    block[96..108].copy_from_slice(&pack_sixteen(&scale.map(|scale| (scale + 32) as u8)));
    block[108..].copy_from_slice(&d.to_le_bytes());
    block
}

fn pairs_header(rounded: &Rounded<8>) -> [u8; 16] {
    let mut header = [0; 16];
    header[..2].copy_from_slice(&rounded.d.to_le_bytes());
    header[2..4].copy_from_slice(&rounded.least.to_le_bytes());
    header[4..].copy_from_slice(&pack_pairs(&rounded.scale, &rounded.offset));
    header
}

pub(super) fn q4_k(numbers: &[f32; 256]) -> [u8; 144] {
    let (rounded, q) = with_offsets::<8>(numbers, 15.0, 63.0);
    let mut block = [0; 144];
    block[..16].copy_from_slice(&pairs_header(&rounded));
    block[16..].copy_from_slice(&q4_k::pack_four_bits(&q));
    block
}

pub(super) fn q5_k(numbers: &[f32; 256]) -> [u8; 176] {
    let (rounded, q) = with_offsets::<8>(numbers, 31.0, 63.0);
    let mut block = [0; 176];
    block[..16].copy_from_slice(&pairs_header(&rounded));
    for (bit, q) in q.as_chunks::<32>().0.iter().enumerate() {
        for (byte, q) in block[16..48].iter_mut().zip(q) {
            *byte |= (q >> 4) << bit;
        }
    }
    block[48..].copy_from_slice(&q4_k::pack_four_bits(&q));
    block
}

pub(super) fn q6_k(numbers: &[f32; 256]) -> [u8; 210] {
    let (d, scale, q) = without_offsets(numbers, 32.0, 128.0);
    let (low, high) = q6_k::pack(&q);
    let mut block = [0; 210];
    block[..128].copy_from_slice(&low);
    block[128..192].copy_from_slice(&high);
    for (byte, scale) in block[192..208].iter_mut().zip(scale) {
        *byte = scale as u8;
    }
    block[208..].copy_from_slice(&d.to_le_bytes());
    block
}
