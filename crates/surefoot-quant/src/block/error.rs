//! What can be wrong with a request to quantise or dequantise.

use super::BlockFormat;

/// Why numbers can't be turned into blocks or back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Some numbers would be left over.
    #[error(
        "{numbers} numbers are not whole blocks of {format}, which have {} numbers each; use a \
         format with smaller blocks",
        format.block_len()
    )]
    NotWholeBlocks {
        /// The format.
        format: BlockFormat,
        /// How many numbers there are.
        numbers: usize,
    },
    /// Bytes and numbers do not belong together.
    #[error("{numbers} numbers take {expected} bytes in {format}, but there are {bytes}")]
    WrongLength {
        /// The format.
        format: BlockFormat,
        /// How many numbers there are.
        numbers: usize,
        /// The bytes they take.
        expected: usize,
        /// The bytes there are.
        bytes: usize,
    },
    /// More bytes than this machine can address.
    #[error("{numbers} numbers in {format} are more bytes than can be addressed")]
    TooLarge {
        /// The format.
        format: BlockFormat,
        /// How many numbers there are.
        numbers: usize,
    },
    /// A number that no scale fits.
    #[error("the number at {at} is NaN or infinite, which {format} can't store")]
    NotFinite {
        /// The format.
        format: BlockFormat,
        /// Its place.
        at: usize,
    },
}
