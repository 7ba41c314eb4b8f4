//! Why a GGUF file is refused.

use std::path::{Path, PathBuf};

use crate::block::BlockError;

/// Why a GGUF file is refused. Byte positions count from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The error of a file that was opened by its path.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<GgufError>,
    },
    /// The system could not read the file.
    #[error("can't be read: {0}")]
    Io(#[from] std::io::Error),
    /// Not a file at all: a folder, a device or a pipe.
    #[error("is not a regular file")]
    NotAFile,
    /// The first bytes are not those of a GGUF file.
    #[error("is not a GGUF file: it begins with {0:02x?}, not with \"GGUF\"")]
    NotGguf([u8; 4]),
    /// Written for big-endian machines.
    #[error("is a big-endian GGUF file; only little-endian ones can be read: convert it")]
    BigEndian,
    /// A version with another layout.
    #[error("has GGUF version {0}; versions 2 and 3 can be read: convert it with a newer tool")]
    Version(u32),
    /// The file ends, or its header is longer than [`MAX_HEADER`](super::MAX_HEADER).
    #[error("ends within {what} at byte {at}: {need} bytes are needed and {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where.
        at: u64,
        /// The bytes it takes.
        need: u64,
        /// The bytes there are.
        left: u64,
    },
    /// A count beyond every real file's.
    #[error("says that it has {count} {what}; at most {most} are read")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// The limit.
        most: u64,
    },
    /// A name beyond every real file's.
    #[error("has {what} of {length} bytes at byte {at}; at most {most} are read")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        length: u64,
        /// The limit.
        most: u64,
        /// Where.
        at: u64,
    },
    /// Text that is none.
    #[error("has {what} at byte {at} that is not UTF-8")]
    NotUtf8 {
        /// What should be text.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// Two values for a key.
    #[error("has the metadata key '{0}' twice")]
    DuplicateKey(String),
    /// Two tensors of one name.
    #[error("has the tensor '{0}' twice")]
    DuplicateTensor(String),
    /// A kind of value that GGUF doesn't have.
    #[error("gives the metadata key '{key}' a value of the unknown type {number}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type.
        number: u32,
    },
    /// A truth value that is neither.
    #[error("gives the metadata key '{key}' the truth value {byte}, which is neither 0 nor 1")]
    NotABool {
        /// The key.
        key: String,
        /// The value.
        byte: u8,
    },
    /// Arrays in arrays in arrays.
    #[error("nests the arrays of the metadata key '{key}' more than {most} deep")]
    TooDeep {
        /// The key.
        key: String,
        /// The limit.
        most: usize,
    },
    /// A key that is needed.
    #[error("has no metadata key '{0}'")]
    MissingKey(String),
    /// A value of another type than its key needs.
    #[error("gives the metadata key '{key}' {actual}, where {expected} is needed")]
    WrongType {
        /// The key.
        key: String,
        /// What is needed.
        expected: &'static str,
        /// What it is.
        actual: String,
    },
    /// An alignment that tensors can't have.
    #[error("has the alignment {0}; it must be a power of two from 1 to {most}", most = super::MAX_ALIGNMENT)]
    Alignment(u64),
    /// A format that is not supported, by its name or number.
    #[error(
        "stores the tensor '{tensor}' as {format}, which is not supported; F32, F16, BF16, Q4_0, \
         Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K are"
    )]
    UnknownFormat {
        /// The tensor.
        tensor: String,
        /// The format.
        format: String,
    },
    /// No dimensions, or too many.
    #[error("gives the tensor '{tensor}' {count} dimensions; it must have 1 to {most}", most = super::MAX_DIMENSIONS)]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// How many.
        count: u32,
    },
    /// A dimension of 0.
    #[error("gives the tensor '{tensor}' the shape {shape:?}, which holds nothing")]
    EmptyTensor {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// More numbers than can be counted.
    #[error("gives the tensor '{tensor}' the shape {shape:?}, which is more than can be addressed")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// Rows that are not whole blocks.
    #[error("the rows of the tensor '{tensor}' don't fit their format: {source}")]
    Rows {
        /// The tensor.
        tensor: String,
        /// What is wrong with them.
        source: BlockError,
    },
    /// A tensor that begins where none may.
    #[error(
        "places the tensor '{tensor}' at offset {offset}, which is not a multiple of {alignment}"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A tensor that reaches beyond the file.
    #[error("places the tensor '{tensor}' up to byte {end}, but has {size} bytes: is it complete?")]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// Its end.
        end: u128,
        /// The size of the file.
        size: u64,
    },
    /// Two tensors that share bytes.
    #[error("lets the tensors '{first}' and '{second}' overlap")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
    },
    /// A part of a split file, but not the first.
    #[error("is part {part} of {count} of a split file; open the first, which has the metadata")]
    NotFirstPart {
        /// The part, counted from 1.
        part: u64,
        /// How many there are.
        count: u64,
    },
    /// A part of a split file whose name doesn't say where the others are.
    #[error("is the first of {count} parts; their names must end in -00001-of-{count:05}.gguf")]
    PartName {
        /// How many there are.
        count: u64,
    },
    /// A part that says it is another one.
    #[error(
        "says it is part {part} of {count}, but its place is part {expected} of {expected_count}"
    )]
    WrongPart {
        /// The part it says it is, counted from 1.
        part: u64,
        /// The parts it says there are.
        count: u64,
        /// The part it should be.
        expected: u64,
        /// The parts there should be.
        expected_count: u64,
    },
    /// Parts that don't add up.
    #[error("says that all parts have {expected} tensors, but they have {actual}")]
    PartTensors {
        /// What the first part says.
        expected: u64,
        /// What was found.
        actual: u64,
    },
}

impl GgufError {
    pub(super) fn at(path: &Path) -> impl FnOnce(Self) -> Self {
        let path = path.to_owned();
        move |source| Self::InFile { path, source: Box::new(source) }
    }
}
