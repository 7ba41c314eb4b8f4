//! A piece: some rows of a matrix in its file, and how they become a tensor.
//!
//! An f32 piece on the CPU is not copied: the tensor's memory is the mapped file. Any other is
//! converted into memory that is mapped for it and goes back to the system with it. Either way
//! a [`Permit`] is held as long as the memory is.

use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use memmap2::MmapMut;

use super::binding::Matrix;
use super::convert;
use super::gate::Permit;
use crate::error::ModelError;
use crate::folder::checkpoint::Stored;
use crate::folder::header::Dtype;
use crate::folder::mapped::MappedRange;

/// Reading and converting go on in steps of this many file bytes, which a cache holds.
const STEP: usize = 512 << 10;

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
        // A page begins at a multiple of four, so the offset alone decides.
        let in_place = self.dtype == Dtype::F32
            && cfg!(target_endian = "little")
            && range.start.is_multiple_of(align_of::<f32>());
        let (shared, cost) = if in_place {
            let start = Instant::now();
            let memory = self.stored.file.map(&range)?;
            let cost = Cost { reading: start.elapsed(), converting: Duration::ZERO };
            (bytes::Bytes::from_owner(Held { memory, _permit: permit }), cost)
        } else {
            let size = range.len() / self.dtype.size() * 4;
            let memory = match &permit {
                Some(permit) => permit.memory(size),
                None => MmapMut::map_anon(size),
            };
            let mut memory = memory.map_err(|error| {
                self.stored.problem(format!("finds no memory for {size} bytes: {error}"))
            })?;
            let cost = self.convert(range, &mut memory[..size])?;
            (bytes::Bytes::from_owner(Converted { memory: Some(memory), size, permit }), cost)
        };
        let bytes = Bytes::from_shared(shared, AllocationProperty::Other);
        let data = TensorData::from_bytes(bytes, shape, DType::F32);
        Ok((Tensor::from_data(data, (device, DType::F32)), cost))
    }

    fn convert(&self, range: Range<usize>, memory: &mut [u8]) -> Result<Cost, ModelError> {
        let size = self.dtype.size();
        let mut source = vec![0; STEP.min(range.len())];
        let mut cost = Cost::default();
        let mut at = range.start as u64;
        for target in memory.chunks_mut(STEP / size * 4) {
            let source = &mut source[..target.len() / 4 * size];
            let start = Instant::now();
            self.stored.file.read_at(at, source)?;
            let read = Instant::now();
            convert::to_f32(self.dtype, source, target);
            cost.reading += read - start;
            cost.converting += read.elapsed();
            at += source.len() as u64;
        }
        Ok(cost)
    }
}

/// A part of a file that a tensor reads in place.
struct Held {
    memory: MappedRange,
    _permit: Option<Permit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref()
    }
}

/// Numbers that were converted. Their memory may be larger than they are.
struct Converted {
    memory: Option<MmapMut>,
    size: usize,
    permit: Option<Permit>,
}

impl AsRef<[u8]> for Converted {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.size])
    }
}

impl Drop for Converted {
    fn drop(&mut self) {
        if let (Some(permit), Some(memory)) = (&self.permit, self.memory.take()) {
            permit.keep(memory);
        }
    }
}
