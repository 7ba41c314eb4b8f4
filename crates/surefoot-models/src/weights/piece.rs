//! A piece: some rows of a matrix in its file, and how they come to a device.
//!
//! What is kept as its file has it is not copied on the processor: its memory is the mapped file.
//! Anything else is converted into memory that is mapped for it. Either way a [`Permit`] is held
//! as long as the memory is; Burn can't hold a permit with memory of a GPU, so there the permit
//! is held by the weight.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use memmap2::MmapMut;
use surefoot::fault::from_error;
use surefoot::recover::Point;
use surefoot::recover::drill::Handle;

use super::binding::Matrix;
use super::convert;
use super::device_blocks::DeviceBlocks;
use super::format::{Format, bytes_of, is_host, numbers_in};
use super::gate::{Gate, Permit};
use super::half_rows::HalfRows;
use super::packed_weight::PackedWeight;
use super::plain_rows::PlainRows;
use super::quantize;
use super::weight::{StreamedWeight, Weight};
use crate::arch::blueprint::Layout;
use crate::error::ModelError;
use crate::folder::checkpoint::Stored;
use crate::folder::header::WeightDtype;
use crate::folder::mapped::MappedRange;
use surefoot_quant::BlockFormat;

/// Reading and converting go on in steps of this many file bytes, which a cache holds.
const STEP: usize = 512 << 10;

/// Some rows of a matrix.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) matrix: usize,
    pub(crate) block: Option<usize>,
    pub(crate) rows: Range<usize>,
    pub(crate) cols: usize,
    stored: Stored,
    format: BlockFormat,
    target: BlockFormat,
    layout: Layout,
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
            block: matrix.block,
            rows,
            cols: matrix.cols(),
            stored: matrix.stored.clone(),
            format: matrix.format,
            target: matrix.target,
            layout: matrix.layout,
        }
    }

    /// Its bytes in memory.
    pub(crate) fn kept_bytes(&self, format: &Format) -> u64 {
        format.kept_bytes(self.target, self.rows.len() * self.cols)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        // Its share of all, so that pieces of a matrix add up to it.
        let (all, rows) = (self.stored.file_bytes(), self.stored.shape[0].max(1) as u64);
        let until = |row: usize| all * row as u64 / rows;
        until(self.rows.end) - until(self.rows.start)
    }

    fn file_range(&self) -> Range<usize> {
        self.stored.range_of_rows(&self.rows)
    }

    /// Numbers in it.
    fn numbers(&self) -> usize {
        self.rows.len() * self.cols
    }

    /// Where its bytes in `format` are read from.
    fn source(&self) -> Result<Source<'_>, ModelError> {
        if !self.stored.is_foreign() {
            return Ok(Source::File(&self.stored, self.file_range().start));
        }
        let mut bytes = vec![0; bytes_of(self.format, self.numbers())];
        self.stored.read_rows(self.rows.clone(), &mut bytes)?;
        Ok(Source::Memory(bytes))
    }

    /// Asks the system to start reading.
    pub(crate) fn announce(&self) {
        self.stored.file.announce(&self.file_range());
    }

    /// Reads the piece onto `device`, to be multiplied with in `compute`. The drill that `drill`
    /// belongs to may strike at the read and at the allocation.
    pub(crate) fn load(
        &self,
        device: &Device,
        compute: WeightDtype,
        permit: Option<Permit>,
        drill: &Handle,
    ) -> Result<(StreamedWeight, Cost), ModelError> {
        drill.check(Point::Read)?;
        let range = self.file_range();
        let kept = Format::new(device, compute).kept(self.target);
        let on_host = is_host(device);
        let (with_memory, with_weight) = if on_host { (permit, None) } else { (None, permit) };
        // A page begins at a multiple of four, so the offset alone decides.
        let as_stored = kept == self.format && self.target == self.format;
        let in_place = as_stored
            && !self.stored.is_foreign()
            && cfg!(target_endian = "little")
            && (kept != BlockFormat::F32 || range.start.is_multiple_of(align_of::<f32>()));
        let (shared, cost) = if in_place {
            let start = Instant::now();
            let memory = self.stored.file.map(&range)?;
            let cost = Cost { reading: start.elapsed(), converting: Duration::ZERO };
            (bytes::Bytes::from_owner(Held { memory: Some(memory), permit: with_memory }), cost)
        } else {
            let size = bytes_of(kept, self.numbers());
            let gate = with_memory.as_ref().or(with_weight.as_ref()).map(Permit::gate);
            let memory = match &gate {
                Some(gate) => gate.memory(size),
                None => MmapMut::map_anon(size),
            };
            let mut memory = memory.map_err(|error| {
                self.stored.problem(format!("finds no memory for {size} bytes: {error}"))
            })?;
            let cost = match self.target == self.format {
                true if as_stored && self.stored.is_foreign() => {
                    let start = Instant::now();
                    self.stored.read_rows(self.rows.clone(), &mut memory[..size])?;
                    Cost { reading: start.elapsed(), converting: Duration::ZERO }
                }
                true => self.convert(kept, &mut memory[..size])?,
                false => self.quantize(kept, &mut memory[..size])?,
            };
            let converted = Converted { memory: Some(memory), size, gate, _permit: with_memory };
            (bytes::Bytes::from_owner(converted), cost)
        };
        drill.check(Point::Allocation)?;
        let (rows, cols) = (self.rows.len(), self.cols);
        let weight = if on_host && kept.is_quantized() {
            Weight::Packed(match self.is_turned(kept) {
                true => PackedWeight::turned(shared, kept, rows, cols),
                false => PackedWeight::new(shared, kept, rows, cols),
            })
        } else if kept.is_quantized() {
            let turned = self.is_turned(kept);
            let shape = if turned { [cols, rows] } else { [rows, cols] };
            let blocks = DeviceBlocks::new(&shared, kept, shape, turned, device)
                .map_err(|error| self.stored.problem(format!("can't be loaded: {error}")))?;
            self.arrived(device)?;
            Weight::Blocks(blocks)
        } else if on_host && kept != BlockFormat::F32 {
            Weight::Half(HalfRows::new(shared, kept, rows, cols))
        } else {
            let dtype = match kept {
                BlockFormat::F16 => DType::F16,
                BlockFormat::BF16 => DType::BF16,
                _ => DType::F32,
            };
            let bytes = Bytes::from_shared(shared.clone(), AllocationProperty::Other);
            let data = TensorData::from_bytes(bytes, [rows, cols], dtype);
            let tensor = Tensor::from_data(data, (device, dtype));
            if on_host {
                Weight::Plain(PlainRows::new(tensor, shared))
            } else {
                drop(shared);
                self.arrived(device)?;
                Weight::Tensor(tensor)
            }
        };
        Ok((StreamedWeight { weight, _permit: with_weight }, cost))
    }

    /// Waits for an upload: until it has arrived there are copies of it on the way, and the next one must not begin.
    fn arrived(&self, device: &Device) -> Result<(), ModelError> {
        let upload = || format!("the upload of '{}'", self.stored.name);
        Ok(device.sync().map_err(|error| from_error(&upload(), error))?)
    }

    fn convert(&self, kept: BlockFormat, memory: &mut [u8]) -> Result<Cost, ModelError> {
        // Numbers in whole blocks of every format.
        let step = STEP / 4;
        let all = self.source()?;
        let mut source = vec![0; bytes_of(self.format, step.min(self.numbers()))];
        let mut cost = Cost::default();
        let mut at = 0;
        for target in memory.chunks_mut(bytes_of(kept, step)) {
            let numbers = numbers_in(kept, target.len());
            let source = &mut source[..bytes_of(self.format, numbers)];
            let start = Instant::now();
            all.read(at, source)?;
            let read = Instant::now();
            convert::convert(self.format, source, kept, target);
            cost.reading += read - start;
            cost.converting += read.elapsed();
            at += source.len();
        }
        Ok(cost)
    }
}

impl Piece {
    /// Whether its rows, which are inputs, are columns of blocks in memory.
    fn is_turned(&self, kept: BlockFormat) -> bool {
        self.goes_down() && self.target != self.format && kept == self.target
    }

    /// Whether blocks are made of numbers below each other.
    fn goes_down(&self) -> bool {
        self.layout == Layout::InOut && self.target.is_quantized()
    }

    /// Its blocks, quantised: rows of outputs, also where the file has inputs as rows.
    pub(crate) fn blocks(&self) -> Result<Vec<u8>, ModelError> {
        let mut memory = vec![0; bytes_of(self.target, self.rows.len() * self.cols)];
        self.quantize(self.target, &mut memory)?;
        Ok(memory)
    }

    /// [`Self::convert`] for numbers that are rounded on the way.
    fn quantize(&self, kept: BlockFormat, memory: &mut [u8]) -> Result<Cost, ModelError> {
        let (from, target, cols) = (self.format, self.target, self.cols);
        // Numbers at a time: whole blocks, which go along the rows or down them.
        let step = match self.goes_down() {
            false => STEP / 4,
            true => (STEP / 4 / cols).max(1).next_multiple_of(target.block_len()) * cols,
        };
        let all_bytes = self.source()?;
        let mut source = vec![0; bytes_of(from, step.min(self.numbers()))];
        let mut cost = Cost::default();
        let (mut done, all) = (0, self.numbers());
        while done < all {
            let numbers = step.min(all - done);
            let source = &mut source[..bytes_of(from, numbers)];
            let start = Instant::now();
            all_bytes.read(bytes_of(from, done), source)?;
            let read = Instant::now();
            let place = bytes_of(kept, done)..bytes_of(kept, done + numbers);
            match self.goes_down() {
                false => quantize::in_order(from, source, target, kept, &mut memory[place]),
                true if self.is_turned(kept) => {
                    let block = done / cols / target.block_len();
                    quantize::turned(from, source, cols, target, (memory, block))
                }
                true => {
                    quantize::down_the_rows(from, source, cols, target, kept, &mut memory[place])
                }
            }
            .map_err(|error| self.stored.problem(format!("can't be quantised: {error}")))?;
            cost.reading += read - start;
            cost.converting += read.elapsed();
            done += numbers;
        }
        Ok(cost)
    }
}

/// The bytes of a piece in the format that its matrix has.
enum Source<'a> {
    /// In its file, from there on.
    File(&'a Stored, usize),
    /// Made from what another program stored.
    Memory(Vec<u8>),
}

impl Source<'_> {
    fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), ModelError> {
        match self {
            Self::File(stored, start) => stored.file.read_at((start + at) as u64, bytes)?,
            Self::Memory(all) => bytes.copy_from_slice(&all[at..at + bytes.len()]),
        }
        Ok(())
    }
}

/// A part of a file that is used in place.
struct Held {
    memory: Option<MappedRange>,
    permit: Option<Permit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], AsRef::as_ref)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(permit), Some(memory)) = (self.permit.take(), self.memory.take()) {
            permit.leave(memory);
        }
    }
}

/// Numbers that were converted. Their memory may be larger than they are, and is used again.
struct Converted {
    memory: Option<MmapMut>,
    size: usize,
    gate: Option<Arc<Gate>>,
    _permit: Option<Permit>,
}

impl AsRef<[u8]> for Converted {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.size])
    }
}

impl Drop for Converted {
    fn drop(&mut self) {
        if let (Some(gate), Some(memory)) = (&self.gate, self.memory.take()) {
            gate.keep(memory);
        }
    }
}
