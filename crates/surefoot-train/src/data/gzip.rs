//! Files that may be packed with gzip.

use std::path::Path;

use zune_inflate::{DeflateDecoder, DeflateOptions};

use super::{DataError, read_file};

/// What gzip begins with.
const MAGIC: [u8; 2] = [0x1f, 0x8b];
/// A packed file may grow to this and no further: 2 GiB.
const LARGEST: usize = 1 << 31;

/// The bytes of a file, unpacked if they are packed.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    unpack(path, read_file(path)?)
}

pub(super) fn unpack(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, DataError> {
    if !bytes.starts_with(&MAGIC) {
        return Ok(bytes);
    }
    let options = DeflateOptions::default().set_limit(LARGEST);
    DeflateDecoder::new_with_options(&bytes, options)
        .decode_gzip()
        .map_err(|error| DataError::new(path, format!("it is not a complete gzip file: {error:?}")))
}
