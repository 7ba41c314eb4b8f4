//! Reading rows of matrices that other programs quantised: unpacked first, then written as blocks.

use std::ops::Range;

use surefoot_quant::BlockFormat;

use super::{Foreign, IN_WORD, Packing, Stored, words_of};
use crate::error::ModelError;

/// Which output each 4 bits of a word of AWQ are of.
const AWQ_ORDER: [usize; IN_WORD] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Foreign {
    fn read_scales(&self, range: Range<usize>) -> Result<Vec<u8>, ModelError> {
        let size = self.scale_format.block_bytes();
        let mut bytes = vec![0; range.len() * size];
        let start = self.scales.range.start + range.start * size;
        self.scales.file.read_at(start as u64, &mut bytes)?;
        Ok(bytes)
    }

    fn floats(&self, scales: &[u8]) -> Result<Vec<f32>, ModelError> {
        let mut floats = vec![0.0; scales.len() / self.scale_format.block_bytes()];
        self.scale_format
            .dequantize(scales, &mut floats)
            .map_err(|error| self.scales.problem(error.to_string()))?;
        Ok(floats)
    }

    pub(super) fn read_words(
        &self,
        stored: &Stored,
        rows: Range<usize>,
    ) -> Result<Decoded<'_>, ModelError> {
        let (count, inputs) = (rows.len(), self.inputs);
        let mut q = vec![0_u8; count * inputs];
        let read = |at: usize, bytes: &mut [u8]| {
            stored.file.read_at((stored.range.start + at * 4) as u64, bytes)
        };
        match self.packing {
            Packing::Awq { .. } => {
                let mut bytes = vec![0; count / IN_WORD * 4];
                for input in 0..inputs {
                    read((input * self.outputs + rows.start) / IN_WORD, &mut bytes)?;
                    for (word, first) in words_of(&bytes).zip((0..count).step_by(IN_WORD)) {
                        for (at, place) in AWQ_ORDER.iter().enumerate() {
                            q[(first + place) * inputs + input] = (word >> (4 * at) & 15) as u8;
                        }
                    }
                }
            }
            _ => {
                let mut bytes = vec![0; count * 4];
                for word_row in 0..inputs / IN_WORD {
                    read(word_row * self.outputs + rows.start, &mut bytes)?;
                    for (word, row) in words_of(&bytes).zip(q.chunks_exact_mut(inputs)) {
                        for (at, q) in row[word_row * IN_WORD..][..IN_WORD].iter_mut().enumerate() {
                            *q = (word >> (4 * at) & 15) as u8;
                        }
                    }
                }
            }
        }
        let (group, zero_offset) = match self.packing {
            Packing::Gptq { group, zero_offset } => (group, zero_offset),
            Packing::Awq { group } => (group, 0),
            Packing::Fp8 { .. } => (inputs, 0),
        };
        let groups = inputs.div_ceil(group);
        let (mut scales, mut zeros) = (Vec::new(), Vec::with_capacity(groups * count));
        let mut bytes = vec![0; count / IN_WORD * 4];
        for number in 0..groups {
            let first = number * self.outputs + rows.start;
            scales.extend(self.read_scales(first..first + count)?);
            let Some(stored) = &self.zeros else { continue };
            stored.file.read_at((stored.range.start + first / IN_WORD * 4) as u64, &mut bytes)?;
            for word in words_of(&bytes) {
                let mut of_word = [0_u8; IN_WORD];
                for (at, place) in AWQ_ORDER.into_iter().enumerate() {
                    let place =
                        if matches!(self.packing, Packing::Awq { .. }) { place } else { at };
                    of_word[place] = (word >> (4 * at) & 15) as u8 + zero_offset;
                }
                zeros.extend(of_word);
            }
        }
        // Blocks of 4 bits take the scales as they are stored.
        let exact = self.order.is_none() && self.scale_format == BlockFormat::F16;
        let wide_scales = if exact { Vec::new() } else { self.floats(&scales)? };
        Ok(Decoded::Words { q, group, count, scales, wide_scales, zeros, foreign: self })
    }

    pub(super) fn read_fp8(
        &self,
        stored: &Stored,
        rows: Range<usize>,
    ) -> Result<Decoded<'_>, ModelError> {
        let Packing::Fp8 { block: [height, width] } = self.packing else {
            return Err(stored.problem("is not fp8"));
        };
        let mut bytes = vec![0; rows.len() * self.inputs];
        let start = stored.range.start + rows.start * self.inputs;
        stored.file.read_at(start as u64, &mut bytes)?;
        let across = self.inputs.div_ceil(width);
        let (first, last) = (rows.start / height, (rows.end - 1) / height);
        let scales = self.read_scales(first * across..(last + 1) * across)?;
        let scales = self.floats(&scales)?;
        let mut numbers = Vec::with_capacity(bytes.len());
        for (row, bytes) in rows.zip(bytes.chunks_exact(self.inputs)) {
            let scales = &scales[(row / height - first) * across..][..across];
            numbers.extend(
                bytes.iter().enumerate().map(|(at, byte)| e4m3(*byte) * scales[at / width]),
            );
        }
        Ok(Decoded::Floats { numbers, inputs: self.inputs })
    }
}

/// Some rows, not yet in blocks.
pub(super) enum Decoded<'a> {
    Words {
        q: Vec<u8>,
        group: usize,
        count: usize,
        scales: Vec<u8>,
        wide_scales: Vec<f32>,
        zeros: Vec<u8>,
        foreign: &'a Foreign,
    },
    Floats {
        numbers: Vec<f32>,
        inputs: usize,
    },
}

impl Decoded<'_> {
    pub(super) fn write(
        &self,
        row: usize,
        format: BlockFormat,
        target: &mut [u8],
        stored: &Stored,
    ) -> Result<(), ModelError> {
        let refused = |error: surefoot_quant::BlockError| stored.problem(error.to_string());
        let (q, group, count, scales, wide_scales, zeros, foreign) = match self {
            Self::Floats { numbers, inputs } => {
                let numbers = &numbers[row * inputs..(row + 1) * inputs];
                return format.quantize(numbers, target).map_err(refused);
            }
            Self::Words { q, group, count, scales, wide_scales, zeros, foreign } => {
                let q = &q[row * foreign.inputs..(row + 1) * foreign.inputs];
                (q, *group, *count, scales, wide_scales, zeros, foreign)
            }
        };
        if format == BlockFormat::Q8_0 {
            let number = |(at, q): (usize, &u8)| {
                let group = foreign.order.as_ref().map_or(at / group, |order| order[at] as usize);
                let place = group * count + row;
                wide_scales[place] * (f32::from(*q) - f32::from(zeros[place]))
            };
            let numbers: Vec<f32> = q.iter().enumerate().map(number).collect();
            return format.quantize(&numbers, target).map_err(refused);
        }
        let blocks = target.chunks_exact_mut(format.block_bytes()).zip(q.as_chunks::<32>().0);
        for (number, (block, q)) in blocks.enumerate() {
            let place = number * 32 / group * count + row;
            let packed = match format {
                BlockFormat::Q4_0 if zeros[place] != 8 => {
                    return Err(stored.problem(format!(
                        "has a zero point of {}, but the configuration says that it is symmetric, which means 8",
                        zeros[place]
                    )));
                }
                BlockFormat::Q4_0 => &mut block[2..],
                _ => {
                    block[2] = zeros[place];
                    &mut block[3..]
                }
            };
            for (at, byte) in packed.iter_mut().enumerate() {
                *byte = q[at] | q[at + 16] << 4;
            }
            block[..2].copy_from_slice(&scales[place * 2..place * 2 + 2]);
        }
        Ok(())
    }
}

/// A number of 4 bits of exponent and 3 of mantissa; there are no infinities.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::e4m3;

    #[test]
    fn fp8_has_the_numbers_of_its_specification() {
        for (byte, number) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ] {
            assert_eq!(e4m3(byte), number, "{byte:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
