//! The header of a safetensors file: eight bytes of length, that much JSON, then the data.
//!
//! Nothing in it is trusted. The length is bounded before anything is allocated, every
//! tensor's range must lie in the file and be as long as its shape says, and no two may overlap.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::mapped::WeightFile;
use crate::error::ModelError;

/// More than any published model needs (about 150 bytes a tensor).
const MAX_HEADER: u64 = 16 << 20;
/// Weights are at most matrices; some buffers that are skipped have four dimensions.
const MAX_DIMS: usize = 8;

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightDtype {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit brain floats.
    Bf16,
}

impl WeightDtype {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The name people know it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// One tensor of a file, as its header describes it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The dtype as the file spells it: only some can be used as weights.
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    /// Where its bytes are in the file.
    pub(crate) range: Range<usize>,
}

/// Reads and checks the header of `file`.
pub(crate) fn read(file: &WeightFile) -> Result<BTreeMap<String, Entry>, ModelError> {
    let bad = |problem: String| ModelError::file(file.path(), problem);
    let mut length = [0; 8];
    if file.size() < 8 {
        return Err(bad(format!("is not a safetensors file: it has {} bytes", file.size())));
    }
    file.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(bad(format!(
            "claims a header of {length} bytes; more than {MAX_HEADER} is not a model"
        )));
    }
    let data_start = 8 + length as usize;
    if file.size() < data_start as u64 {
        return Err(bad(format!(
            "is truncated: its header should end at byte {data_start}, the file at {}",
            file.size()
        )));
    }
    let mut json = vec![0; length as usize];
    file.read_at(8, &mut json)?;
    let raw: RawHeader = serde_json::from_slice(&json)
        .map_err(|error| bad(format!("has a header that can't be read: {error}")))?;
    let mut entries = BTreeMap::new();
    for (name, tensor) in raw.0 {
        let entry = check(file, data_start, &name, tensor)?;
        if entries.insert(name.clone(), entry).is_some() {
            return Err(ModelError::tensor(file.path(), name, "is in the header twice"));
        }
    }
    refuse_overlaps(file, &entries)?;
    Ok(entries)
}

/// Whether the header of `file` can be relied on.
pub fn check_file(file: &WeightFile) -> Result<(), ModelError> {
    read(file).map(|_| ())
}

fn check(file: &WeightFile, start: usize, name: &str, raw: RawTensor) -> Result<Entry, ModelError> {
    let bad = |problem: String| ModelError::tensor(file.path(), name, problem);
    if raw.shape.len() > MAX_DIMS {
        return Err(bad(format!("has {} dimensions", raw.shape.len())));
    }
    let bits = bits_of(&raw.dtype).ok_or_else(|| bad(format!("has the dtype '{}'", raw.dtype)))?;
    let size = raw
        .shape
        .iter()
        .try_fold(1_u64, |size, &dim| size.checked_mul(dim))
        .and_then(|count| count.checked_mul(bits))
        .map(|bits| bits / 8)
        .ok_or_else(|| bad(format!("has the absurd shape {:?}", raw.shape)))?;
    let (from, to) = raw.data_offsets;
    if from > to {
        return Err(bad(format!("ends ({to}) before it starts ({from})")));
    }
    let available = file.size() - start as u64;
    if to > available {
        return Err(bad(format!(
            "ends at byte {to} of the data, but the file has only {available}: it is truncated"
        )));
    }
    if to - from != size {
        return Err(bad(format!(
            "has {} bytes where its shape {:?} in {} needs {size}",
            to - from,
            raw.shape,
            raw.dtype
        )));
    }
    Ok(Entry {
        dtype: raw.dtype,
        // Each dimension is at most the file's length, or the product is zero.
        shape: raw.shape.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect(),
        range: start + from as usize..start + to as usize,
    })
}

fn refuse_overlaps(file: &WeightFile, entries: &BTreeMap<String, Entry>) -> Result<(), ModelError> {
    let mut by_start: Vec<_> =
        entries.iter().filter(|(_, entry)| !entry.range.is_empty()).collect();
    by_start.sort_by_key(|(_, entry)| entry.range.start);
    for pair in by_start.windows(2) {
        if pair[1].1.range.start < pair[0].1.range.end {
            return Err(ModelError::tensor(
                file.path(),
                pair[1].0,
                format!("overlaps tensor '{}'", pair[0].0),
            ));
        }
    }
    Ok(())
}

fn bits_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's entries in file order, duplicates kept so that they can be refused.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
