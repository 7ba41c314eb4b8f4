//! A piece: some rows of a matrix in its file, and how they become a tensor.
//!
//! An f32 piece on the CPU is not copied: the tensor's memory is the mapped file. Any other is
//! converted into memory that is mapped for it and goes back to the system with it. Either way
//! a [`Permit`] is held as long as the memory is.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use memmap2::MmapMut;

use super::binding::Matrix;
use super::convert;
use super::gate::Permit;
use crate::error::ModelError;
use crate::folder::checkpoint::Stored;
use crate::folder::header::Dtype;
use crate::folder::mapped::Mapped;

/// Reading and converting go on in steps of this many file bytes, so that few pages of the
/// file are in the process beside the converted numbers.
const STEP: usize = 2 << 20;

/// Some rows of a matrix.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) matrix: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) cols: usize,
    stored: Stored,
    dtype: Dtype,
}

/// How long it took to bring a piece in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) reading: Duration,
    pub(crate) converting: Duration,
}

impl Piece {
    pub(crate) fn new(number: usize, matrix: &Matrix, rows: Range<usize>) -> Self {
        Self {
            matrix: number,
            rows,
            cols: matrix.cols(),
            stored: matrix.stored.clone(),
            dtype: matrix.dtype,
        }
    }

    pub(crate) fn f32_bytes(&self) -> u64 {
        (self.rows.len() * self.cols * 4) as u64
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_range().len() as u64
    }

    fn file_range(&self) -> Range<usize> {
        let row = self.cols * self.dtype.size();
        let start = self.stored.range.start;
        start + self.rows.start * row..start + self.rows.end * row
    }

    /// Asks the system to start reading.
    pub(crate) fn announce(&self) {
        self.stored.file.announce(&self.file_range());
    }

    /// Reads the piece onto `device` as f32.
    pub(crate) fn load(
        &self,
        device: &Device,
        permit: Option<Permit>,
    ) -> Result<(Tensor<2>, Cost), ModelError> {
        let range = self.file_range();
        let shape = [self.rows.len(), self.cols];
        let source = &self.stored.file.bytes()[range.clone()];
        let in_place = self.dtype == Dtype::F32
            && cfg!(target_endian = "little")
            && source.as_ptr().cast::<f32>().is_aligned();
        let (shared, cost) = if in_place {
            let start = Instant::now();
            self.stored.file.populate(&range);
            let cost = Cost { reading: start.elapsed(), converting: Duration::ZERO };
            let window = Window { file: Arc::clone(&self.stored.file), range, _permit: permit };
            (bytes::Bytes::from_owner(window), cost)
        } else {
            let (memory, cost) = self.converted(range)?;
            (bytes::Bytes::from_owner(Converted { memory, _permit: permit }), cost)
        };
        let bytes = Bytes::from_shared(shared, AllocationProperty::Other);
        let data = TensorData::from_bytes(bytes, shape, DType::F32);
        Ok((Tensor::from_data(data, (device, DType::F32)), cost))
    }

    fn converted(&self, range: Range<usize>) -> Result<(MmapMut, Cost), ModelError> {
        let file = &self.stored.file;
        let size = self.dtype.size();
        let mut memory = MmapMut::map_anon(range.len() / size * 4).map_err(|error| {
            self.stored.problem(format!("finds no memory for {} bytes: {error}", range.len()))
        })?;
        let mut cost = Cost::default();
        let mut at = range.start;
        for target in memory.chunks_mut(STEP / size * 4) {
            let part = at..at + target.len() / 4 * size;
            let start = Instant::now();
            file.populate(&part);
            let read = Instant::now();
            convert::to_f32(self.dtype, &file.bytes()[part.clone()], target);
            cost.reading += read - start;
            cost.converting += read.elapsed();
            file.drop_pages(&part);
            at = part.end;
        }
        file.drop_pages(&range);
        Ok((memory, cost))
    }
}

/// A part of a mapped file that a tensor reads in place.
struct Window {
    file: Arc<Mapped>,
    range: Range<usize>,
    _permit: Option<Permit>,
}

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.file.drop_pages(&self.range);
    }
}

/// Numbers that were converted.
struct Converted {
    memory: MmapMut,
    _permit: Option<Permit>,
}

impl AsRef<[u8]> for Converted {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}
