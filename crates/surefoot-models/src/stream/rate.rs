//! Predicts how fast a plan will run, from short measurements on this machine.

use std::time::Instant;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use serde::Serialize;
use surefoot::recover::Confirm;

use super::plan::Plan;
use crate::arch::blueprint::Layout;
use crate::weights::binding::{Binding, Matrix};
use crate::weights::convert;
use crate::weights::device_blocks::DeviceBlocks;
use crate::weights::format::{Format, bytes_of, is_host, numbers_in};
use crate::weights::half_rows::HalfRows;
use crate::weights::packed_weight::PackedWeight;
use crate::weights::quantize;
use crate::weights::weight::Weight;
use surefoot_quant::BlockFormat;

/// What was measured, and what follows for the plan.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// Bytes a second from the model's files; those that are in the page cache come faster.
    pub read_bytes_per_second: f64,
    /// Bytes a second from the files' dtype to the one in memory; none where they are the same.
    pub convert_bytes_per_second: Option<f64>,
    /// Bytes of weights a second that a single token's pass goes through.
    pub decode_bytes_per_second: f64,
    /// Seconds for one token of every sequence.
    pub seconds_per_step: f64,
    /// Tokens a second of one sequence.
    pub tokens_per_second: f64,
    /// `disk`, `conversion` or `compute`.
    pub limited_by: &'static str,
    /// Seconds of computing alone.
    #[serde(skip)]
    computing: f64,
}

/// So much is read and converted to see how fast that goes.
const SAMPLE: usize = 16 << 20;
/// The bytes of weights that are multiplied with a vector: more than caches hold, in every format.
const DECODED: u64 = 64 << 20;

impl Rate {
    /// Measures and estimates.
    pub fn estimate(plan: &Plan, binding: &Binding, format: &Format, device: &Device) -> Self {
        // A token goes through some of the experts.
        let bytes = |matrix: &Matrix| (format.bytes(matrix) as f64 * matrix.used()) as u64;
        let all: u64 = binding.matrices.iter().map(bytes).sum();
        let (read, convert) = sample(binding, format);
        let kept =
            binding.matrices.first().map_or(BlockFormat::F32, |first| format.kept(first.target));
        let laid_over: f64 = plan.device_map.iter().map(|share| share.seconds_per_token).sum();
        let decode = match plan.device_map.is_empty() {
            true => sample_decode(device, format, kept),
            false => all as f64 / laid_over.max(f64::MIN_POSITIVE),
        };
        let streamed = plan.streamed_file_bytes as f64;
        let reading = streamed / read;
        let converting = convert.map_or(0.0, |convert| streamed / convert);
        let computing = all as f64 / decode;
        let feeding = reading + converting;
        let seconds = feeding.max(computing).max(f64::MIN_POSITIVE);
        Self {
            read_bytes_per_second: read,
            convert_bytes_per_second: convert,
            decode_bytes_per_second: decode,
            seconds_per_step: seconds,
            tokens_per_second: 1.0 / seconds,
            limited_by: match () {
                () if computing >= feeding => "compute",
                () if reading >= converting => "disk",
                () => "conversion",
            },
            computing,
        }
    }
}

impl Rate {
    /// Tokens a second of one sequence, and what limits them, if `streamed` bytes were read as they are kept.
    pub(crate) fn with_streamed(&self, streamed: f64) -> (f64, &'static str) {
        let (reading, computing) = (streamed / self.read_bytes_per_second, self.computing);
        let seconds = reading.max(computing).max(f64::MIN_POSITIVE);
        (1.0 / seconds, if computing >= reading { "compute" } else { "disk" })
    }
}

/// Reads and converts the start of the largest matrix.
pub(crate) fn sample(binding: &Binding, format: &Format) -> (f64, Option<f64>) {
    let Some(matrix) = binding.matrices.iter().max_by_key(|matrix| matrix.file_bytes()) else {
        return (f64::INFINITY, None);
    };
    // Whole blocks of every format.
    let numbers = numbers_in(matrix.format, matrix.stored.range.len().min(SAMPLE)) / 256 * 256;
    let mut source = vec![0; bytes_of(matrix.format, numbers)];
    let begun = Instant::now();
    if matrix.stored.file.read_at(matrix.stored.range.start as u64, &mut source).is_err() {
        return (f64::INFINITY, None);
    }
    let read = source.len() as f64 / begun.elapsed().as_secs_f64().max(1e-9);
    let kept = format.kept(matrix.target);
    let convert = (kept != matrix.format || matrix.is_rounded()).then(|| {
        let mut target = vec![0_u8; bytes_of(kept, numbers)];
        let begun = Instant::now();
        if matrix.is_rounded() {
            // Numbers that can't be quantised are found when they are loaded.
            let _ = quantize::in_order(matrix.format, &source, matrix.target, kept, &mut target);
        } else {
            convert::convert(matrix.format, &source, kept, &mut target);
        }
        source.len() as f64 / begun.elapsed().as_secs_f64().max(1e-9)
    });
    (read, convert)
}

/// Bytes a second to a device.
pub(crate) fn sample_upload(device: &Device) -> f64 {
    let numbers = vec![1.0_f32; SAMPLE / 4];
    let mut best = f64::INFINITY;
    for _ in 0..2 {
        let data = TensorData::new(numbers.clone(), [numbers.len()]);
        let begun = Instant::now();
        let tensor: Tensor<1> = Tensor::from_data(data, device);
        let _ = tensor.confirm("rate");
        best = best.min(begun.elapsed().as_secs_f64());
    }
    SAMPLE as f64 / best.max(1e-9)
}

/// The speed of a matrix times a vector that no cache holds.
pub(crate) fn sample_decode(device: &Device, format: &Format, kept: BlockFormat) -> f64 {
    let cols = 2048;
    let rows = (DECODED / format.kept_bytes(kept, cols).max(1)) as usize;
    let vector: Tensor<2> = Tensor::ones([cols, 1], device);
    let (weight, vector) = match kept {
        BlockFormat::F32 => (Weight::Tensor(Tensor::ones([rows, cols], device)), vector),
        packed if packed.is_quantized() && is_host(device) => {
            let memory = vec![0x3c; bytes_of(packed, rows * cols)].into();
            (Weight::Packed(PackedWeight::new(memory, packed, rows, cols)), vector)
        }
        packed if packed.is_quantized() => {
            let memory = vec![0x3c; bytes_of(packed, rows * cols)];
            match DeviceBlocks::new(&memory, packed, [rows, cols], false, device) {
                Ok(blocks) => (Weight::Blocks(blocks), format.operand(vector)),
                Err(_) => return f64::INFINITY,
            }
        }
        half if is_host(device) => {
            let memory = vec![0x3c; bytes_of(half, rows * cols)].into();
            (Weight::Half(HalfRows::new(memory, half, rows, cols)), vector)
        }
        half => {
            let dtype = if half == BlockFormat::F16 { FloatDType::F16 } else { FloatDType::BF16 };
            let matrix: Tensor<2> = Tensor::ones([rows, cols], device);
            (Weight::Tensor(matrix.cast(dtype)), vector.cast(dtype))
        }
    };
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let begun = Instant::now();
        let product = weight.times(Layout::OutIn, vector.clone());
        // Looking at a number makes sure that it was computed.
        let _ = product.confirm("rate");
        best = best.min(begun.elapsed().as_secs_f64());
    }
    format.kept_bytes(kept, rows * cols) as f64 / best.max(1e-9)
}
