//! A file of weights: read by position, or mapped a range at a time. The mapping is the only
//! `unsafe` of the crate.
//!
//! Only what is in use is mapped, so neither the process's memory nor its address space grows
//! with the file. Pages that leave the process stay in the page cache, so reading them again is
//! cheap where the machine has room.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};

use crate::error::ModelError;

/// One file that is open for reading.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    file: File,
    size: u64,
}

impl WeightFile {
    /// Opens a regular file. Devices, pipes and folders are refused before they are opened.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let about = std::fs::metadata(path)
            .map_err(|error| ModelError::file(path, format!("can't be read: {error}")))?;
        if !about.is_file() {
            return Err(ModelError::file(path, "is not a regular file"));
        }
        let file = File::open(path)
            .map_err(|error| ModelError::file(path, format!("can't be opened: {error}")))?;
        Ok(Self { path: path.to_owned(), file, size: about.len() })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads as many bytes as `target` has from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), ModelError> {
        read_exact_at(&self.file, target, offset).map_err(|error| {
            ModelError::file(&self.path, format!("can't be read at byte {offset}: {error}"))
        })
    }

    /// Maps a range and reads its pages in, so that who uses them doesn't wait for the disk.
    pub(crate) fn map(&self, range: &Range<usize>) -> Result<MappedRange, ModelError> {
        let map = self.mapping(range)?;
        let touched = map.iter().step_by(TOUCH).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        std::hint::black_box(touched);
        Ok(MappedRange(map))
    }

    /// Starts reading a range from the disk without waiting for it.
    pub(crate) fn announce(&self, range: &Range<usize>) {
        if let Ok(map) = self.mapping(range) {
            // A hint: if the system refuses it or has none, the pages are read when they are needed.
            #[cfg(unix)]
            let _ = map.advise(memmap2::Advice::WillNeed);
            #[cfg(not(unix))]
            drop(map);
        }
    }

    #[allow(unsafe_code)]
    fn mapping(&self, range: &Range<usize>) -> Result<Mmap, ModelError> {
        let mut options = MmapOptions::new();
        options.offset(range.start as u64).len(range.len());
        // SAFETY: the mapping is read-only and private, and its bytes are only ever read as
        // plain numbers, so no value can be invalid. Another process that rewrites the file
        // changes the numbers that are read; one that truncates it ends this process with
        // SIGBUS. Both are what every program that maps model files accepts.
        unsafe { options.map(&self.file) }.map_err(|error| {
            ModelError::file(
                &self.path,
                format!("can't be mapped ({} bytes): {error}", range.len()),
            )
        })
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, target: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, target, offset)
}

/// Windows reads as many bytes as it likes.
#[cfg(windows)]
fn read_exact_at(file: &File, mut target: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !target.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, target, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        target = &mut target[read..];
        offset += read as u64;
    }
    Ok(())
}

/// One byte in so many is read to have all pages mapped. Linux maps those around a page that is
/// touched as well, 64 KiB of them, if they have been read; asking it to map each (PopulateRead)
/// takes twice the time. Should some be missing, they are mapped when they are used.
const TOUCH: usize = if cfg!(target_os = "linux") { 64 << 10 } else { 4 << 10 };

/// A mapped range of a file.
#[derive(Debug)]
pub(crate) struct MappedRange(Mmap);

impl AsRef<[u8]> for MappedRange {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
