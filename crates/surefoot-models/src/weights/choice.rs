//! In how many bits the user wants weights: as their files have them, or quantised while they are loaded.
//!
//! `q8` is Q8_0, `q4` is Q4_0 with a head in Q8_0: blocks of 32 numbers along the inputs of a matrix, with a
//! scale each. Both are formats whose quantisation every program agrees on bit by bit, so what is made here while
//! loading, what `surefoot quantize` writes and what other tools write can be compared. The table of token
//! embeddings is read a row at a time and stays as its file has it; norms and biases stay too.

use std::fmt;
use std::str::FromStr;

use surefoot_quant::BlockFormat;

use crate::arch::blueprint::Layout;
use crate::error::ModelError;

/// In which form weights are multiplied with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightChoice {
    /// As their files have them.
    #[default]
    AsStored,
    /// In 8 bits: Q8_0.
    Q8,
    /// In 4 bits: Q4_0, and Q8_0 for the head.
    Q4,
}

impl WeightChoice {
    /// All choices, the most exact first.
    pub const ALL: [Self; 3] = [Self::AsStored, Self::Q8, Self::Q4];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AsStored => "as-stored",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }

    /// The format for a matrix that is stored in `stored`. One that takes no fewer bytes, or whose blocks would
    /// not be whole, is not used.
    pub(crate) fn format(
        self,
        stored: BlockFormat,
        layout: Layout,
        [rows, cols]: [usize; 2],
        is_head: bool,
    ) -> BlockFormat {
        let wanted = match self {
            Self::AsStored => return stored,
            Self::Q4 if !is_head => BlockFormat::Q4_0,
            Self::Q8 | Self::Q4 => BlockFormat::Q8_0,
        };
        let len = wanted.block_len();
        let whole = match layout {
            Layout::OutIn => cols.is_multiple_of(len),
            // Blocks go down the rows there, and rows must have whole bytes as well.
            Layout::InOut => cols.is_multiple_of(len) && rows.is_multiple_of(len),
        };
        let bytes = |format: BlockFormat| format.block_bytes() * 256 / format.block_len();
        if whole && bytes(wanted) < bytes(stored) { wanted } else { stored }
    }
}

impl fmt::Display for WeightChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for WeightChoice {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::ALL.into_iter().find(|choice| choice.as_str() == text).ok_or_else(|| {
            ModelError::request(format!("'{text}' is not one of q8, q4 and as-stored"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_grows_and_no_block_is_cut() {
        use BlockFormat::{BF16, F32, Q4_0, Q6_K, Q8_0};
        let (wide, odd) = ([64, 64], [64, 40]);
        for (choice, stored, layout, shape, is_head, expected) in [
            (WeightChoice::AsStored, F32, Layout::OutIn, wide, false, F32),
            (WeightChoice::Q8, BF16, Layout::OutIn, wide, false, Q8_0),
            (WeightChoice::Q4, BF16, Layout::OutIn, wide, false, Q4_0),
            (WeightChoice::Q4, BF16, Layout::OutIn, wide, true, Q8_0),
            (WeightChoice::Q4, F32, Layout::InOut, wide, false, Q4_0),
            (WeightChoice::Q4, F32, Layout::OutIn, odd, false, F32),
            (WeightChoice::Q4, F32, Layout::InOut, odd, false, F32),
            (WeightChoice::Q8, Q6_K, Layout::OutIn, wide, false, Q6_K),
            (WeightChoice::Q4, Q6_K, Layout::OutIn, wide, false, Q4_0),
            (WeightChoice::Q4, Q4_0, Layout::OutIn, wide, true, Q4_0),
        ] {
            let got = choice.format(stored, layout, shape, is_head);
            assert_eq!(got, expected, "{choice} of {stored} {layout:?} {shape:?} {is_head}");
        }
        for choice in WeightChoice::ALL {
            assert_eq!(choice.as_str().parse::<WeightChoice>().unwrap(), choice);
        }
        assert!("q5".parse::<WeightChoice>().is_err());
    }
}
