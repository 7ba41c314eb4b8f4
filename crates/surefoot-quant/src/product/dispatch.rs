//! Calls the kernels that this processor has the instructions for.
//!
//! This is the only file of the crate with `unsafe`. A kernel is a safe function that was compiled for
//! instructions beyond those of every processor; calling it is unsafe for no other reason than that they
//! must be there. [`Instructions`] can only be made by asking the processor, so to have one is the proof. Beside it there are
//! two things that the standard library has no safe function for: a change of a vector's type (`as_bf16`), and a hint about
//! memory that is read soon ([`prefetch`]).

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m512bh, __m512i, _MM_HINT_T0, _mm_prefetch};
use std::sync::OnceLock;

use super::activations::{ActivationGroup, Activations};
#[cfg(target_arch = "x86_64")]
use super::bf16_columns::Bf16Columns;
#[cfg(target_arch = "aarch64")]
use super::f32_rows;
#[cfg(target_arch = "x86_64")]
use super::float_columns::FloatColumns;
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{FEW, float, portable};
use crate::block::{BlockFormat, Blocks, Q2K, Q3K, Q4K, Q4ZP, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80};
use crate::processor::{Most, most};

/// Up to so many columns, AVX-512 is no faster with tiles of rows and columns than row by row.
#[cfg(target_arch = "x86_64")]
const FEW_FLOATS: usize = 4;

/// Instructions that this processor has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Instructions(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// Dot products of bf16 numbers beside those of bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512VnniBf16,
    #[cfg(target_arch = "aarch64")]
    NeonDotProduct,
}

impl Instructions {
    /// The fastest that this processor has and `SUREFOOT_CPU` allows.
    pub fn best() -> Self {
        static BEST: OnceLock<Instructions> = OnceLock::new();
        *BEST.get_or_init(|| Self::within(most()))
    }

    /// The fastest that this processor has within a limit.
    fn within(limit: Most) -> Self {
        let fits = |with: &Self| match limit {
            Most::All => true,
            #[cfg(target_arch = "x86_64")]
            Most::Avx2 => matches!(with.0, Kind::Portable | Kind::Avx2),
            #[cfg(not(target_arch = "x86_64"))]
            Most::Avx2 => true,
            Most::Portable => with.0 == Kind::Portable,
        };
        Self::all().into_iter().rfind(fits).unwrap_or(Self(Kind::Portable))
    }

    /// All that this processor has, the fastest last.
    pub fn all() -> Vec<Self> {
        #[allow(unused_mut, reason = "some processors have no others")]
        let mut all = vec![Self(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            if avx2 {
                all.push(Self(Kind::Avx2));
            }
            let vnni = avx2 && has!("avx512f") && has!("avx512vl") && has!("avx512vnni");
            if vnni {
                all.push(Self(Kind::Avx512Vnni));
            }
            if vnni && has!("avx512bf16") {
                all.push(Self(Kind::Avx512VnniBf16));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            all.push(Self(Kind::NeonDotProduct));
        }
        all
    }

    /// Their name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "AVX-512 VNNI",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512VnniBf16 => "AVX-512 VNNI and BF16",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDotProduct => "NEON with dot products",
        }
    }
}

impl std::fmt::Debug for Instructions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

pub(super) fn quantize(with: Instructions, column: &[f32], groups: &mut [ActivationGroup]) {
    match with.0 {
        Kind::Portable => super::activations::quantize(column, groups),
        // SAFETY: `with` is the proof that the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::avx2::quantize(column, groups) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni | Kind::Avx512VnniBf16 => unsafe {
            x86::avx512_vnni::quantize(column, groups);
        },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDotProduct => unsafe { neon_dot_product::quantize(column, groups) },
    }
}

pub(super) fn float(
    with: Instructions,
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
) {
    match with.0 {
        Kind::Portable => float::multiply::<false, 4>(format, rows, row_bytes, x, inputs, out),
        // SAFETY: `with` is the proof that the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::avx2::float(format, rows, row_bytes, x, inputs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni | Kind::Avx512VnniBf16
            if out.len() > FEW_FLOATS && format != BlockFormat::F32 =>
        unsafe {
            x86::float_tiles::multiply(format, rows, row_bytes, x, inputs, out);
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni | Kind::Avx512VnniBf16 => unsafe {
            x86::avx512_vnni::float(format, rows, row_bytes, x, inputs, out);
        },
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDotProduct if format == BlockFormat::F32 => {
            f32_rows::multiply(rows, row_bytes, x, inputs, out, |_| ());
        }
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDotProduct => float::multiply::<true, 4>(format, rows, row_bytes, x, inputs, out),
    }
}

/// Multiplies some rows, given with the bytes of each, with all columns.
pub(super) type RowsProduct = Box<dyn Fn(&[u8], usize, &mut [&mut [f32]]) + Send + Sync>;

/// Products of F16 and BF16 weights with columns that are packed once: for AVX2 more than [`FEW`], and columns of bf16 numbers for dot products
/// of them. None where columns are multiplied as they lie.
pub(super) fn many_floats(
    with: Instructions,
    format: BlockFormat,
    x: &[f32],
    inputs: usize,
    columns: usize,
) -> Option<RowsProduct> {
    #[cfg(target_arch = "x86_64")]
    return many_bf16(with, format, x, inputs, columns)
        .or_else(|| packed_floats(with, format, x, inputs, columns));
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (with, format, x, inputs, columns);
        None
    }
}

/// Products with packed columns.
#[cfg(target_arch = "x86_64")]
fn packed_floats(
    with: Instructions,
    format: BlockFormat,
    x: &[f32],
    inputs: usize,
    columns: usize,
) -> Option<RowsProduct> {
    if inputs == 0 || columns <= FEW || with.0 != Kind::Avx2 || format == BlockFormat::F32 {
        return None;
    }
    let x = FloatColumns::new(x, inputs);
    Some(Box::new(move |rows, row_bytes, out| {
        // SAFETY: `with` was the proof that the processor has the instructions.
        unsafe { x86::float_panels::multiply(format, rows, row_bytes, &x, out) }
    }))
}

/// Products of more than [`FEW`] columns of bf16 numbers with BF16 weights. None where the processor has no
/// instructions for them, or the activations have more bits than bf16 has.
#[cfg(target_arch = "x86_64")]
fn many_bf16(
    with: Instructions,
    format: BlockFormat,
    x: &[f32],
    inputs: usize,
    columns: usize,
) -> Option<RowsProduct> {
    let fits = with.0 == Kind::Avx512VnniBf16 && format == BlockFormat::BF16 && columns > FEW;
    let x = if fits { Bf16Columns::exact(x, inputs)? } else { return None };
    Some(Box::new(move |rows, row_bytes, out| {
        // SAFETY: `with` was the proof that the processor has the instructions.
        unsafe { x86::many_bf16_columns(rows, row_bytes, &x, out) }
    }))
}

/// The same bits as numbers in bf16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn as_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, any of which make numbers.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

/// Asks for the cache lines of some bytes, which are read soon. The processor does so by itself along one long row, but not
/// for eight rows at once, nor at the start of each row.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch(bytes: &[u8]) {
    for line in bytes.iter().step_by(64) {
        // SAFETY: it is a hint about a byte that is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast()) }
    }
}

pub(super) fn quantized(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &Activations,
    out: &mut [&mut [f32]],
) {
    match format {
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => {}
        BlockFormat::Q4_0 => of::<Q40>(rows, row_bytes, x, out),
        BlockFormat::Q4_1 => of::<Q41>(rows, row_bytes, x, out),
        BlockFormat::Q5_0 => of::<Q50>(rows, row_bytes, x, out),
        BlockFormat::Q5_1 => of::<Q51>(rows, row_bytes, x, out),
        BlockFormat::Q8_0 => of::<Q80>(rows, row_bytes, x, out),
        BlockFormat::Q2_K => of::<Q2K>(rows, row_bytes, x, out),
        BlockFormat::Q3_K => of::<Q3K>(rows, row_bytes, x, out),
        BlockFormat::Q4_K => of::<Q4K>(rows, row_bytes, x, out),
        BlockFormat::Q5_K => of::<Q5K>(rows, row_bytes, x, out),
        BlockFormat::Q6_K => of::<Q6K>(rows, row_bytes, x, out),
        BlockFormat::Q4_ZP => of::<Q4ZP>(rows, row_bytes, x, out),
    }
}

fn of<B: Blocks>(rows: &[u8], row_bytes: usize, x: &Activations, out: &mut [&mut [f32]]) {
    let many = x.columns() > FEW;
    match x.instructions().0 {
        Kind::Portable => portable::multiply::<B>(rows, row_bytes, x, out),
        // SAFETY: `x` has the proof that the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 if many => unsafe { x86::avx2::many::<B>(rows, row_bytes, x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::avx2::few::<B>(rows, row_bytes, x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni | Kind::Avx512VnniBf16 if many => unsafe {
            x86::avx512_vnni::many::<B>(rows, row_bytes, x, out);
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni | Kind::Avx512VnniBf16 => unsafe {
            x86::avx512_vnni::few::<B>(rows, row_bytes, x, out);
        },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDotProduct => unsafe {
            let _ = many;
            neon_dot_product::multiply::<B>(rows, row_bytes, x, out);
        },
    }
}

/// The portable kernels, compiled for the dot products that ARM added to NEON.
#[cfg(target_arch = "aarch64")]
mod neon_dot_product {
    use super::*;

    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn quantize(column: &[f32], groups: &mut [ActivationGroup]) {
        super::super::activations::quantize(column, groups);
    }

    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn multiply<B: Blocks>(
        rows: &[u8],
        row_bytes: usize,
        x: &Activations,
        out: &mut [&mut [f32]],
    ) {
        portable::multiply::<B>(rows, row_bytes, x, out);
    }
}
