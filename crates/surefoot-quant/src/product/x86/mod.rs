//! Kernels for x86 processors, written once and compiled twice: for AVX2, and for AVX-512's dot products of
//! bytes (VNNI) on vectors of 256 bits; and for AVX-512's dot products of bf16 numbers.
//!
//! All functions are safe. They need their instructions, so `dispatch` alone calls them. Loops over the columns of a tile count them: the
//! compiler unrolls these, where it leaves iterators over several arrays as loops, with their sums in memory.

#![allow(clippy::needless_range_loop, reason = "see above")]

mod bf16;
mod few_columns;
pub(super) mod float_panels;
pub(super) mod float_tiles;
mod many_columns;
mod rounding;

use std::arch::x86_64::*;

use self::few_columns::{
    AT_ONCE, BLOCK, F32_AT_ONCE, Scales, TOGETHER, few_columns, is_unpacked_in_registers, put,
    unzipped,
};
use self::many_columns::{Panel, interleave, many_columns, scale_and_sum};
use self::rounding::rounding;
use super::activations::{ActivationGroup, Activations, TILE};
use super::dispatch::prefetch;
use super::f32_rows;
use super::group::WeightGroup;
use super::{FEW, PANEL};
use crate::block::{BlockFormat, Blocks};

pub(super) use bf16::many_columns as many_bf16_columns;

/// A vector of what is at the start of `bytes`.
#[inline(always)]
fn load256(bytes: &[u8; 32]) -> __m256i {
    bytemuck::cast(*bytes)
}

#[inline(always)]
fn load128(bytes: &[u8; 16]) -> __m128i {
    bytemuck::cast(*bytes)
}

#[inline(always)]
fn floats(numbers: &[f32; 8]) -> __m256 {
    bytemuck::cast(*numbers)
}

/// The `at`-th 32 bytes of 256.
#[inline(always)]
fn part<T: bytemuck::Pod>(bytes: &[T; 256], at: usize) -> __m256i
where
    [T; 32]: bytemuck::Pod,
{
    bytemuck::cast(bytes.as_chunks::<32>().0[at])
}

pub(super) mod avx2 {
    use super::*;

    /// Four columns at a time: there are sixteen registers.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn tile_product<B: Blocks>(
        panel: &Panel,
        x: [&ActivationGroup; TILE],
        sums: &mut [[f32; PANEL]; TILE],
    ) {
        for (x, sums) in x.as_chunks::<4>().0.iter().zip(sums.as_chunks_mut::<4>().0) {
            four_columns::<B>(panel, x, sums);
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn four_columns<B: Blocks>(
        panel: &Panel,
        x: &[&ActivationGroup; 4],
        sums: &mut [[f32; PANEL]; 4],
    ) {
        let steps = B::SUB / 4;
        for sub in 0..256 / B::SUB {
            let mut integers = [[_mm256_setzero_si256(); 2]; 4];
            for step in sub * steps..(sub + 1) * steps {
                let q: [__m256i; 2] = bytemuck::cast(panel.q[step]);
                for column in 0..4 {
                    let four: i32 = bytemuck::cast(x[column].q.as_chunks::<4>().0[step]);
                    let four = _mm256_set1_epi32(four);
                    let integers = &mut integers[column];
                    if B::FORMAT as u8 == BlockFormat::Q8_0 as u8 {
                        integers[0] = dot::<true>(integers[0], q[0], four);
                        integers[1] = dot::<true>(integers[1], q[1], four);
                    } else {
                        integers[0] = dot::<false>(integers[0], q[0], four);
                        integers[1] = dot::<false>(integers[1], q[1], four);
                    }
                }
            }
            let scales: [__m256; 2] = bytemuck::cast(panel.scale[sub]);
            let offsets: [__m256; 2] = bytemuck::cast(panel.offset[sub]);
            for column in 0..4 {
                let (scale, sum) = scale_and_sum::<B>(x[column], sub);
                let (scale, sum) = (_mm256_set1_ps(scale), _mm256_set1_ps(sum));
                let mut totals: [__m256; 2] = bytemuck::cast(sums[column]);
                for half in 0..2 {
                    let scale = _mm256_mul_ps(scales[half], scale);
                    let products = _mm256_cvtepi32_ps(integers[column][half]);
                    totals[half] = _mm256_fmadd_ps(products, scale, totals[half]);
                    totals[half] = _mm256_fmadd_ps(offsets[half], sum, totals[half]);
                }
                sums[column] = bytemuck::cast(totals);
            }
        }
    }

    /// Products of two bytes are added in 16 bits, which hold them as long as `q` is at most 128. Of wider
    /// ones the highest bit is multiplied by itself.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn dot<const WIDE: bool>(sum: __m256i, q: __m256i, x: __m256i) -> __m256i {
        let ones = _mm256_set1_epi16(1);
        if WIDE {
            let high = _mm256_and_si256(q, _mm256_set1_epi8(-128));
            let low = _mm256_maddubs_epi16(_mm256_andnot_si256(high, q), x);
            let high = _mm256_maddubs_epi16(high, x);
            let both =
                _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones));
            return _mm256_add_epi32(sum, both);
        }
        _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(q, x), ones))
    }

    rounding!("avx2,fma,f16c");
    few_columns!("avx2,fma,f16c", 3);
    many_columns!("avx2,fma,f16c");
}

pub(super) mod avx512_vnni {
    use super::*;

    /// All rows of a panel in one register, and all columns of the tile at once.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
    #[inline]
    fn tile_product<B: Blocks>(
        panel: &Panel,
        x: [&ActivationGroup; TILE],
        sums: &mut [[f32; PANEL]; TILE],
    ) {
        let steps = B::SUB / 4;
        let mut totals = sums.map(|sums| wide(bytemuck::cast(sums)));
        for sub in 0..256 / B::SUB {
            let mut integers = [_mm512_setzero_si512(); TILE];
            for step in sub * steps..(sub + 1) * steps {
                let [low, high]: [__m256i; 2] = bytemuck::cast(panel.q[step]);
                let q = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                for column in 0..TILE {
                    let four: i32 = bytemuck::cast(x[column].q.as_chunks::<4>().0[step]);
                    let four = _mm512_set1_epi32(four);
                    integers[column] = _mm512_dpbusd_epi32(integers[column], q, four);
                }
            }
            let scales = wide(bytemuck::cast(panel.scale[sub]));
            let offsets = wide(bytemuck::cast(panel.offset[sub]));
            for column in 0..TILE {
                let (scale, sum) = scale_and_sum::<B>(x[column], sub);
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(scale));
                let products = _mm512_cvtepi32_ps(integers[column]);
                let total = _mm512_fmadd_ps(products, scale, totals[column]);
                totals[column] = _mm512_fmadd_ps(offsets, _mm512_set1_ps(sum), total);
            }
        }
        for (sums, total) in sums.iter_mut().zip(totals) {
            let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(total));
            *sums = bytemuck::cast([_mm512_castps512_ps256(total), _mm256_castpd_ps(high)]);
        }
    }

    /// A vector of both halves: `bytemuck` knows vectors of 512 bits only with a feature that nothing else here needs.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
    #[inline]
    fn wide([low, high]: [__m256; 2]) -> __m512 {
        let low = _mm512_castps_pd(_mm512_castps256_ps512(low));
        _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, _mm256_castps_pd(high)))
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
    #[inline]
    fn dot<const WIDE: bool>(sum: __m256i, q: __m256i, x: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(sum, q, x)
    }

    rounding!("avx2,fma,f16c,avx512f,avx512vl,avx512vnni");
    few_columns!("avx2,fma,f16c,avx512f,avx512vl,avx512vnni", 4);
    many_columns!("avx2,fma,f16c,avx512f,avx512vl,avx512vnni");
}
