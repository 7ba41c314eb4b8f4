//! The block formats of GGUF files, and one more: `Q4_ZP`, which holds weights of GPTQ and AWQ as they are.
//!
//! Every quantised format stores a row of numbers as blocks of 32 or 256. A block holds small
//! unsigned integers `q` and, for each sub-block of 16 or 32 of them, a scale and often an offset;
//! a number is `scale · (q − zero) + add`. The trait `Blocks` is that common form: dequantisation and all
//! products are written once against it, and a format is what it takes to unpack one block.
//!
//! Dequantisation gives the same bits as the `gguf` Python package; so does quantisation to Q4_0,
//! Q4_1, Q5_0, Q5_1, Q8_0, F16 and BF16 (`tests/golden.rs`). The formats with 256 numbers a block
//! have no reference quantiser: theirs is a search of our own for the least squared error (`search`).

mod error;
mod float;
mod k_quantize;
mod k_scales;
mod q2_k;
mod q3_k;
pub(crate) mod q4_k;
mod q5_k;
mod q6_k;
mod search;
mod signed;
mod simple;

pub use error::BlockError;
pub(crate) use float::{bf16_to_f32, f16_to_f32, widen};
pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub use signed::SignedBlocks;
pub(crate) use simple::{Q4ZP, Q40, Q41, Q50, Q51, Q80};

/// How to unpack one block of a quantised format.
pub(crate) trait Blocks {
    /// Which format it is.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86 kernels use it"))]
    const FORMAT: BlockFormat;
    /// The numbers of a block.
    const LEN: usize;
    /// The bytes of a block.
    const BYTES: usize;
    /// The numbers that share a scale: 16 or 32.
    const SUB: usize;
    /// What the integers are above: a number is `scale · (q − ZERO) + add`.
    const ZERO: u8;

    /// Unpacks the first [`Self::BYTES`] of `block` into [`Self::LEN`] integers and
    /// `LEN / SUB` scales and offsets. Slices that are too short are left as they are.
    fn unpack(block: &[u8], q: &mut [u8], scale: &mut [f32], add: &mut [f32]);
}

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the names that everybody uses")]
#[non_exhaustive]
pub enum BlockFormat {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// The upper half of 32-bit floating point.
    BF16,
    /// 4 bits, a scale for 32 numbers.
    Q4_0,
    /// 4 bits, a scale and an offset for 32 numbers.
    Q4_1,
    /// 5 bits, a scale for 32 numbers.
    Q5_0,
    /// 5 bits, a scale and an offset for 32 numbers.
    Q5_1,
    /// 8 bits, a scale for 32 numbers.
    Q8_0,
    /// 2 bits, a 4-bit scale and offset for 16 numbers.
    Q2_K,
    /// 3 bits, a 6-bit scale for 16 numbers.
    Q3_K,
    /// 4 bits, a 6-bit scale and offset for 32 numbers.
    Q4_K,
    /// 5 bits, a 6-bit scale and offset for 32 numbers.
    Q5_K,
    /// 6 bits, an 8-bit scale for 16 numbers.
    Q6_K,
    /// 4 bits, a scale and a whole zero point for 32 numbers; no GGUF file has it.
    Q4_ZP,
}

use BlockFormat::*;

impl BlockFormat {
    /// All formats.
    pub const ALL: [Self; 14] =
        [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q4_ZP];

    /// The format of this name, as GGUF tools print it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Whether it is one of the formats with a scale for 256 numbers and smaller ones inside, whose
    /// quantisation is a search that each program does in its own way.
    pub const fn is_k_quant(self) -> bool {
        matches!(self, Q2_K | Q3_K | Q4_K | Q5_K | Q6_K)
    }

    /// The name, as GGUF tools print it.
    pub const fn name(self) -> &'static str {
        match self {
            F32 => "F32",
            F16 => "F16",
            BF16 => "BF16",
            Q4_0 => "Q4_0",
            Q4_1 => "Q4_1",
            Q5_0 => "Q5_0",
            Q5_1 => "Q5_1",
            Q8_0 => "Q8_0",
            Q2_K => "Q2_K",
            Q3_K => "Q3_K",
            Q4_K => "Q4_K",
            Q5_K => "Q5_K",
            Q6_K => "Q6_K",
            Q4_ZP => "Q4_ZP",
        }
    }

    /// The number that stands for the format in a GGUF file, if such files have it.
    pub const fn ggml_type(self) -> Option<u32> {
        Some(match self {
            F32 => 0,
            F16 => 1,
            Q4_0 => 2,
            Q4_1 => 3,
            Q5_0 => 6,
            Q5_1 => 7,
            Q8_0 => 8,
            Q2_K => 10,
            Q3_K => 11,
            Q4_K => 12,
            Q5_K => 13,
            Q6_K => 14,
            BF16 => 30,
            Q4_ZP => return None,
        })
    }

    /// The format that `number` stands for in a GGUF file, if it is one of these.
    pub fn from_ggml_type(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.ggml_type() == Some(number))
    }

    /// The numbers of a block; 1 where every number stands for itself.
    pub const fn block_len(self) -> usize {
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_ZP => 32,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K => 256,
        }
    }

    /// The bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 => Q40::BYTES,
            Q4_1 => Q41::BYTES,
            Q5_0 => Q50::BYTES,
            Q5_1 => Q51::BYTES,
            Q8_0 => Q80::BYTES,
            Q2_K => Q2K::BYTES,
            Q3_K => Q3K::BYTES,
            Q4_K => Q4K::BYTES,
            Q5_K => Q5K::BYTES,
            Q6_K => Q6K::BYTES,
            Q4_ZP => Q4ZP::BYTES,
        }
    }

    /// Whether numbers are stored as integers that share scales.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// The bytes of `numbers` numbers, which must be whole blocks.
    pub fn bytes_of(self, numbers: usize) -> Result<usize, BlockError> {
        if !numbers.is_multiple_of(self.block_len()) {
            return Err(BlockError::NotWholeBlocks { format: self, numbers });
        }
        (numbers / self.block_len())
            .checked_mul(self.block_bytes())
            .ok_or(BlockError::TooLarge { format: self, numbers })
    }

    /// Turns blocks into numbers.
    pub fn dequantize(self, blocks: &[u8], numbers: &mut [f32]) -> Result<(), BlockError> {
        self.check(blocks.len(), numbers.len())?;
        match self {
            F32 | F16 | BF16 => float::widen(self, blocks, numbers),
            Q4_0 => dequantize::<Q40>(blocks, numbers),
            Q4_1 => dequantize::<Q41>(blocks, numbers),
            Q5_0 => dequantize::<Q50>(blocks, numbers),
            Q5_1 => dequantize::<Q51>(blocks, numbers),
            Q8_0 => dequantize::<Q80>(blocks, numbers),
            Q2_K => dequantize::<Q2K>(blocks, numbers),
            Q3_K => dequantize::<Q3K>(blocks, numbers),
            Q4_K => dequantize::<Q4K>(blocks, numbers),
            Q5_K => dequantize::<Q5K>(blocks, numbers),
            Q6_K => dequantize::<Q6K>(blocks, numbers),
            Q4_ZP => dequantize::<Q4ZP>(blocks, numbers),
        }
        Ok(())
    }

    /// Turns numbers into blocks. Numbers that are NaN or infinite are refused.
    pub fn quantize(self, numbers: &[f32], blocks: &mut [u8]) -> Result<(), BlockError> {
        self.check(blocks.len(), numbers.len())?;
        if self.is_quantized()
            && let Some(at) = numbers.iter().position(|number| !number.is_finite())
        {
            return Err(BlockError::NotFinite { format: self, at });
        }
        match self {
            F32 | F16 | BF16 => float::narrow(self, numbers, blocks),
            Q4_0 => each_block(numbers, blocks, simple::quantize_q4_0),
            Q4_1 => each_block(numbers, blocks, simple::quantize_q4_1),
            Q5_0 => each_block(numbers, blocks, simple::quantize_q5_0),
            Q5_1 => each_block(numbers, blocks, simple::quantize_q5_1),
            Q8_0 => each_block(numbers, blocks, simple::quantize_q8_0),
            Q2_K => each_block(numbers, blocks, k_quantize::q2_k),
            Q3_K => each_block(numbers, blocks, k_quantize::q3_k),
            Q4_K => each_block(numbers, blocks, k_quantize::q4_k),
            Q5_K => each_block(numbers, blocks, k_quantize::q5_k),
            Q6_K => each_block(numbers, blocks, k_quantize::q6_k),
            Q4_ZP => each_block(numbers, blocks, simple::quantize_q4_zp),
        }
        Ok(())
    }

    fn check(self, bytes: usize, numbers: usize) -> Result<(), BlockError> {
        let expected = self.bytes_of(numbers)?;
        match bytes == expected {
            true => Ok(()),
            false => Err(BlockError::WrongLength { format: self, numbers, expected, bytes }),
        }
    }
}

impl std::fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn dequantize<B: Blocks>(blocks: &[u8], numbers: &mut [f32]) {
    let (mut q, mut scale, mut add) = ([0; 256], [0.0; 16], [0.0; 16]);
    for (block, numbers) in blocks.chunks_exact(B::BYTES).zip(numbers.chunks_exact_mut(B::LEN)) {
        B::unpack(block, &mut q, &mut scale, &mut add);
        let subs = numbers.chunks_exact_mut(B::SUB).zip(q.chunks_exact(B::SUB));
        for ((numbers, q), (scale, add)) in subs.zip(scale.iter().zip(&add)) {
            for (number, q) in numbers.iter_mut().zip(q) {
                *number = scale * (f32::from(*q) - f32::from(B::ZERO)) + add;
            }
        }
    }
}

fn each_block<const LEN: usize, const BYTES: usize>(
    numbers: &[f32],
    blocks: &mut [u8],
    quantize: fn(&[f32; LEN]) -> [u8; BYTES],
) {
    let blocks = blocks.as_chunks_mut::<BYTES>().0;
    for (block, numbers) in blocks.iter_mut().zip(numbers.as_chunks::<LEN>().0) {
        *block = quantize(numbers);
    }
}
