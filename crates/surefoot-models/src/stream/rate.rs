//! How fast a plan will run: small samples of this machine, taken now.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use serde::Serialize;

use super::plan::Plan;
use crate::weights::binding::Binding;
use crate::weights::convert;

/// What was measured, and what follows for the plan.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// Bytes a second from the model's files; those that are in the page cache come faster.
    pub read_bytes_per_second: f64,
    /// Bytes a second from the files' dtype to f32; nothing to convert is infinitely fast.
    pub convert_bytes_per_second: Option<f64>,
    /// Bytes of weights a second that a single token's pass goes through.
    pub decode_bytes_per_second: f64,
    /// Seconds for one token of every sequence.
    pub seconds_per_step: f64,
    /// Tokens a second of one sequence.
    pub tokens_per_second: f64,
    /// `disk`, `conversion` or `compute`.
    pub limited_by: &'static str,
}

/// So much is read and converted to see how fast that goes.
const SAMPLE: usize = 16 << 20;

impl Rate {
    /// Measures and estimates.
    pub fn estimate(plan: &Plan, binding: &Binding, device: &Device) -> Self {
        let all: u64 = binding.matrices.iter().map(|matrix| matrix.f32_bytes()).sum();
        let (read, convert) = sample(binding);
        let decode = sample_decode(device);
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
        }
    }
}

/// Reads and converts the start of the largest matrix.
fn sample(binding: &Binding) -> (f64, Option<f64>) {
    let Some(matrix) = binding.matrices.iter().max_by_key(|matrix| matrix.file_bytes()) else {
        return (f64::INFINITY, None);
    };
    let size = matrix.dtype.size();
    let mut source = vec![0; matrix.stored.range.len().min(SAMPLE) / size * size];
    let begun = Instant::now();
    if matrix.stored.file.read_at(matrix.stored.range.start as u64, &mut source).is_err() {
        return (f64::INFINITY, None);
    }
    let read = source.len() as f64 / begun.elapsed().as_secs_f64().max(1e-9);
    let convert = (size != 4).then(|| {
        let mut target = vec![0_u8; source.len() / size * 4];
        let begun = Instant::now();
        convert::to_f32(matrix.dtype, &source, &mut target);
        source.len() as f64 / begun.elapsed().as_secs_f64().max(1e-9)
    });
    (read, convert)
}

/// The speed of a matrix times a vector that no cache holds.
fn sample_decode(device: &Device) -> f64 {
    let (rows, cols) = (4096, 2048);
    let matrix: Tensor<2> = Tensor::random([rows, cols], Distribution::Default, device);
    let vector: Tensor<2> = Tensor::random([cols, 1], Distribution::Default, device);
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let begun = Instant::now();
        let product = matrix.clone().matmul(vector.clone());
        // Reading makes sure that it was computed.
        let _ = product.try_into_data();
        best = best.min(begun.elapsed().as_secs_f64());
    }
    (rows * cols * 4) as f64 / best.max(1e-9)
}
