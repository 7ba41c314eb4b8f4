//! Reads in order, and never more than there is.

use std::io::Read;

use super::{GgufError, MAX_HEADER};

pub(super) struct Reader<R> {
    source: R,
    at: u64,
    end: u64,
}

impl<R: Read> Reader<R> {
    /// Reads `source`, which has `size` bytes.
    pub(super) fn new(source: R, size: u64) -> Self {
        Self { source, at: 0, end: size.min(MAX_HEADER) }
    }

    /// The bytes that were read so far.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Whether `need` bytes are left.
    pub(super) fn check(&self, need: u64, what: &'static str) -> Result<(), GgufError> {
        let left = self.end - self.at;
        match need <= left {
            true => Ok(()),
            false => Err(GgufError::Truncated { what, at: self.at, need, left }),
        }
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], GgufError> {
        self.check(N as u64, what)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count, at most `most`.
    pub(super) fn count(&mut self, what: &'static str, most: u64) -> Result<u64, GgufError> {
        match self.u64(what)? {
            count if count <= most => Ok(count),
            count => Err(GgufError::TooMany { what, count, most }),
        }
    }

    /// Text of at most `most` bytes, with its length before it.
    pub(super) fn text(&mut self, what: &'static str, most: u64) -> Result<String, GgufError> {
        let (at, length) = (self.at, self.u64(what)?);
        if length > most {
            return Err(GgufError::TooLong { what, length, most, at });
        }
        self.check(length, what)?;
        let mut bytes = vec![0; length as usize];
        self.source.read_exact(&mut bytes)?;
        self.at += length;
        String::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what, at })
    }
}
