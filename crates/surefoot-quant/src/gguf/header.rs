//! The header of one GGUF file.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::reader::Reader;
use super::tensor::{Described, Tensor};
use super::value::Value;
use super::{GgufError, MAX_ALIGNMENT, MAX_KEY, MAX_KEYS, MAX_TENSORS};

const ALIGNMENT: &str = "general.alignment";

/// What the header of a GGUF file says, checked against the file's size.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Gguf {
    /// The version of the format.
    pub version: u32,
    /// The metadata.
    pub metadata: BTreeMap<String, Value>,
    /// The tensors, in the order of the header.
    pub tensors: Vec<Tensor>,
    /// Where the tensors' bytes begin.
    pub data_start: u64,
}

impl Gguf {
    /// Reads the header of the file at `path`.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let read = || {
            let about = std::fs::metadata(path)?;
            if !about.is_file() {
                return Err(GgufError::NotAFile);
            }
            let file = BufReader::with_capacity(1 << 20, File::open(path)?);
            Self::read(file, about.len())
        };
        read().map_err(GgufError::at(path))
    }

    /// Reads the header of a file of `size` bytes from its start.
    pub fn read(source: impl Read, size: u64) -> Result<Self, GgufError> {
        let mut reader = Reader::new(source, size);
        let magic = reader.array("the first bytes")?;
        if &magic != b"GGUF" {
            return Err(GgufError::NotGguf(magic));
        }
        let version = match reader.u32("the version")? {
            version @ (2 | 3) => version,
            version if matches!(version.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
            version => return Err(GgufError::Version(version)),
        };
        let tensors = reader.count("tensors", MAX_TENSORS)?;
        let keys = reader.count("metadata keys", MAX_KEYS)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..keys {
            let key = reader.text("a metadata key", MAX_KEY)?;
            let value = Value::read(&mut reader, &key)?;
            if metadata.contains_key(&key) {
                return Err(GgufError::DuplicateKey(key));
            }
            metadata.insert(key, value);
        }
        let alignment = alignment(&metadata)?;
        let described: Vec<Described> =
            (0..tensors).map(|_| Tensor::describe(&mut reader)).collect::<Result<_, _>>()?;
        // The header is shorter than MAX_HEADER, so this can't overflow.
        let data_start = reader.at().next_multiple_of(alignment);
        let tensors = described
            .into_iter()
            .map(|tensor| tensor.place(data_start, alignment, size))
            .collect::<Result<Vec<_>, _>>()?;
        check_apart(&tensors)?;
        Ok(Self { version, metadata, tensors, data_start })
    }

    /// The value of a key that must be there.
    pub fn value(&self, key: &str) -> Result<&Value, GgufError> {
        self.metadata.get(key).ok_or_else(|| GgufError::MissingKey(key.to_owned()))
    }

    /// A text, if the key is there.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a text", Value::as_text)
    }

    /// A whole number that is not negative, if the key is there.
    pub fn number(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "a whole number that is not negative", Value::as_u64)
    }

    /// A floating-point number, if the key is there.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a floating-point number", Value::as_f64)
    }

    /// A truth value, if the key is there.
    pub fn truth(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a truth value", Value::as_bool)
    }

    /// Texts, if the key is there.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "an array of texts", Value::as_texts)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        take(value).map(Some).ok_or_else(|| GgufError::WrongType {
            key: key.to_owned(),
            expected,
            actual: value.kind().to_owned(),
        })
    }
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, GgufError> {
    let Some(value) = metadata.get(ALIGNMENT) else { return Ok(32) };
    match value.as_u64() {
        Some(alignment) if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT => {
            Ok(alignment)
        }
        Some(alignment) => Err(GgufError::Alignment(alignment)),
        None => Err(GgufError::WrongType {
            key: ALIGNMENT.to_owned(),
            expected: "a whole number that is not negative",
            actual: value.kind().to_owned(),
        }),
    }
}

/// No two tensors may have a name or a byte in common.
fn check_apart(tensors: &[Tensor]) -> Result<(), GgufError> {
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        return Err(GgufError::DuplicateTensor(twice.name.clone()));
    }
    let mut by_place: Vec<&Tensor> = tensors.iter().collect();
    by_place.sort_by_key(|tensor| tensor.range.start);
    match by_place.windows(2).find(|pair| pair[0].range.end > pair[1].range.start) {
        Some(pair) => {
            Err(GgufError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() })
        }
        None => Ok(()),
    }
}
