//! A file mapped for reading: the only `unsafe` of the project.
//!
//! Pages come in when they are touched or asked for with [`Mapped::populate`] and leave the
//! process with [`Mapped::drop_pages`]; they stay in the page cache, so reading them again is
//! cheap where the machine has room.

#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::error::ModelError;

/// One file, mapped read-only.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    map: Mmap,
}

impl Mapped {
    /// Maps a regular file. Devices, pipes and folders are refused before they are opened.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let about = std::fs::metadata(path)
            .map_err(|error| ModelError::file(path, format!("can't be read: {error}")))?;
        if !about.is_file() {
            return Err(ModelError::file(path, "is not a regular file"));
        }
        let file = File::open(path)
            .map_err(|error| ModelError::file(path, format!("can't be opened: {error}")))?;
        // SAFETY: the mapping is read-only and private, and its bytes are only ever read as
        // plain numbers, so no value can be invalid. Another process that rewrites the file
        // changes the numbers that are read; one that truncates it ends this process with
        // SIGBUS. Both are what every program that maps model files accepts.
        let map = unsafe { Mmap::map(&file) }
            .map_err(|error| ModelError::file(path, format!("can't be mapped: {error}")))?;
        Ok(Self { path: path.to_owned(), map })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Reads the pages of `range` in now, so that who uses them doesn't wait for the disk.
    pub(crate) fn populate(&self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        if self.map.advise_range(Advice::PopulateRead, range.start, range.len()).is_err() {
            // Kernels before 5.14: touch one byte of every page.
            let mut sum = 0_u8;
            for byte in self.map[range.clone()].iter().step_by(PAGE) {
                sum = sum.wrapping_add(*byte);
            }
            std::hint::black_box(sum);
        }
    }

    /// Starts reading `range` from the disk without waiting for it.
    pub(crate) fn announce(&self, range: &Range<usize>) {
        if !range.is_empty() {
            // A hint: if the kernel refuses it, the pages are read when they are touched.
            let _ = self.map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Takes the pages that `range` touches out of the process.
    pub(crate) fn drop_pages(&self, range: &Range<usize>) {
        let start = range.start / PAGE * PAGE;
        let end = (range.end.div_ceil(PAGE) * PAGE).min(self.map.len());
        if start < end {
            // SAFETY: the mapping is read-only and file-backed: a page that is dropped comes
            // back with the same contents when it is next touched. A refusal changes nothing.
            let _ = unsafe {
                self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }
}

/// Dropping is rounded to this. Where pages are larger the kernel refuses ranges that don't
/// fit, and the pages merely stay longer.
const PAGE: usize = 4096;
