//! A tensor of a GGUF file: its name, shape, format and place.

use std::io::Read;
use std::ops::Range;

use super::reader::Reader;
use super::{GgufError, MAX_DIMENSIONS, MAX_NAME};
use crate::block::BlockFormat;

/// A tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// How its numbers are stored.
    pub format: BlockFormat,
    /// Its dimensions in the order of GGUF: the numbers of a row first, then the rows.
    pub shape: Vec<u64>,
    /// Its bytes, counted from the start of the file.
    pub range: Range<u64>,
}

/// A tensor as the header describes it.
pub(super) struct Described {
    name: String,
    format: BlockFormat,
    shape: Vec<u64>,
    bytes: u64,
    offset: u64,
}

impl Tensor {
    /// The numbers of a row.
    pub fn cols(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The rows, of all further dimensions together.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    pub(super) fn describe<R: Read>(reader: &mut Reader<R>) -> Result<Described, GgufError> {
        let tensor = reader.text("the name of a tensor", MAX_NAME)?;
        let count = reader.u32("the number of a tensor's dimensions")?;
        if !(1..=MAX_DIMENSIONS).contains(&count) {
            return Err(GgufError::Dimensions { tensor, count });
        }
        let shape = (0..count)
            .map(|_| reader.u64("the dimensions of a tensor"))
            .collect::<Result<Vec<u64>, _>>()?;
        let number = reader.u32("the format of a tensor")?;
        let offset = reader.u64("the offset of a tensor")?;
        let Some(format) = BlockFormat::from_ggml_type(number) else {
            return Err(GgufError::UnknownFormat { tensor, format: name_of(number) });
        };
        if shape.contains(&0) {
            return Err(GgufError::EmptyTensor { tensor, shape });
        }
        let numbers = shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
        let (Some(numbers), Ok(cols)) = (numbers, usize::try_from(shape[0])) else {
            return Err(GgufError::TooLarge { tensor, shape });
        };
        if let Err(source) = format.bytes_of(cols) {
            return Err(GgufError::Rows { tensor, source });
        }
        let blocks = numbers / format.block_len() as u64;
        let bytes = blocks.checked_mul(format.block_bytes() as u64);
        match bytes.filter(|bytes| usize::try_from(*bytes).is_ok()) {
            Some(bytes) => Ok(Described { name: tensor, format, shape, bytes, offset }),
            None => Err(GgufError::TooLarge { tensor, shape }),
        }
    }
}

impl Described {
    /// Finds its place in a file of `size` bytes whose data begin at `start`.
    pub(super) fn place(self, start: u64, alignment: u64, size: u64) -> Result<Tensor, GgufError> {
        let Self { name, format, shape, bytes, offset } = self;
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { tensor: name, offset, alignment });
        }
        let range = start
            .checked_add(offset)
            .and_then(|begin| begin.checked_add(bytes).map(|end| begin..end))
            .filter(|range| range.end <= size);
        match range {
            Some(range) => Ok(Tensor { name, format, shape, range }),
            None => {
                let end = u128::from(start) + u128::from(offset) + u128::from(bytes);
                Err(GgufError::OutOfFile { tensor: name, end, size })
            }
        }
    }
}

/// Formats that exist but are not read here, so that they can be refused by name.
fn name_of(number: u32) -> String {
    let name = match number {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("type {number}"),
    };
    name.to_owned()
}
