//! Single operations as models use them, in the measured dtype without casts.

use std::sync::Arc;

use burn::tensor::module::{attention, conv2d};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions};
use burn::tensor::{DType, Distribution, Tensor, TensorData};
use surefoot::Fault;
use surefoot::device::{DeviceKind, OpenDevice};
use surefoot::fault::from_error;
use surefoot::place::{Dtype, float_dtype};
use surefoot::recover::Confirm;

use super::{Amount, Job};

/// Random numbers small enough for products to stay in the range of fp16.
pub(super) fn random<const D: usize>(
    shape: [usize; D],
    device: &OpenDevice,
    precision: Dtype,
) -> Tensor<D> {
    let spread = Distribution::Uniform(-0.05, 0.05);
    Tensor::<D>::random(shape, spread, device.burn()).cast(float_dtype(precision))
}

/// Repeats an operation and reads one value of the last result. A device works through its queue in
/// order, so all of them are done then.
fn repeat<const D: usize>(
    name: &str,
    repeats: u32,
    mut operation: impl FnMut() -> Tensor<D>,
) -> Result<(), Fault> {
    let mut last = None;
    for _ in 0..repeats.max(1) {
        last = Some(operation());
    }
    last.map_or(Ok(()), |last| last.confirm(name))
}

/// A product of square matrices.
pub(crate) struct Matmul {
    size: usize,
    a: Tensor<2>,
    b: Tensor<2>,
}

impl Matmul {
    pub(crate) fn new(device: &OpenDevice, precision: Dtype, size: usize) -> Self {
        let matrix = || random([size, size], device, precision);
        Self { size, a: matrix(), b: matrix() }
    }
}

impl Job for Matmul {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        repeat("matmul", repeats, || self.a.clone().matmul(self.b.clone()))
    }

    fn amount(&self) -> Amount {
        let flops = 2.0 * (self.size as f64).powi(3);
        Amount { count: flops, unit: "FLOP/s", flops: Some(flops), bytes: None }
    }

    fn what(&self) -> String {
        let n = self.size;
        format!("{n}×{n} by {n}×{n}")
    }

    fn can_repeat(&self) -> bool {
        true
    }
}

/// A convolution of images, as in a residual network.
pub(crate) struct Convolution {
    x: Tensor<4>,
    weight: Tensor<4>,
}

const IMAGES: usize = 16;
const CHANNELS: usize = 64;
const SIDE: usize = 32;

impl Convolution {
    pub(crate) fn new(device: &OpenDevice, precision: Dtype) -> Self {
        Self {
            x: random([IMAGES, CHANNELS, SIDE, SIDE], device, precision),
            weight: random([CHANNELS, CHANNELS, 3, 3], device, precision),
        }
    }
}

impl Job for Convolution {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        repeat("convolution", repeats, || {
            conv2d(self.x.clone(), self.weight.clone(), None, options())
        })
    }

    fn amount(&self) -> Amount {
        let flops = (2 * IMAGES * CHANNELS * CHANNELS * 9 * SIDE * SIDE) as f64;
        Amount { count: flops, unit: "FLOP/s", flops: Some(flops), bytes: None }
    }

    fn what(&self) -> String {
        format!("3×3 over {IMAGES} images of {SIDE}×{SIDE}, {CHANNELS} channels to {CHANNELS}")
    }

    fn can_repeat(&self) -> bool {
        true
    }
}

/// Attention over `[batch, heads, tokens, width]`.
pub(crate) struct Attention {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
}

const ATTENTION: [usize; 4] = [2, 8, 256, 64];

impl Attention {
    pub(crate) fn new(device: &OpenDevice, precision: Dtype) -> Self {
        let tensor = || random(ATTENTION, device, precision);
        Self { query: tensor(), key: tensor(), value: tensor() }
    }
}

impl Job for Attention {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        repeat("attention", repeats, || {
            let (query, key, value) = (self.query.clone(), self.key.clone(), self.value.clone());
            attention(query, key, value, None, None, AttentionModuleOptions::default())
        })
    }

    fn amount(&self) -> Amount {
        let [batch, heads, tokens, width] = ATTENTION;
        let flops = (4 * batch * heads * tokens * tokens * width) as f64;
        Amount { count: flops, unit: "FLOP/s", flops: Some(flops), bytes: None }
    }

    fn what(&self) -> String {
        let [batch, heads, tokens, width] = ATTENTION;
        format!("{batch} sequences of {tokens} tokens, {heads} heads of {width}")
    }

    fn can_repeat(&self) -> bool {
        true
    }
}

/// Adds one to many numbers: limited by memory bandwidth.
pub(crate) struct AddOne {
    x: Tensor<1>,
    bytes: usize,
}

impl AddOne {
    pub(crate) fn new(device: &OpenDevice, precision: Dtype) -> Self {
        let bytes = size_of_copies(device);
        Self { x: random([bytes / precision.size()], device, precision), bytes }
    }
}

impl Job for AddOne {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        repeat("add", repeats, || self.x.clone().add_scalar(1.0))
    }

    fn amount(&self) -> Amount {
        let bytes = 2.0 * self.bytes as f64;
        Amount { count: bytes, unit: "B/s", flops: None, bytes: Some(bytes) }
    }

    fn what(&self) -> String {
        format!("{} MiB read and written", self.bytes >> 20)
    }

    fn can_repeat(&self) -> bool {
        true
    }
}

/// The product of one row and a large matrix, which is read once, as in decoding.
pub(crate) struct RowByMatrix {
    row: Tensor<2>,
    matrix: Tensor<2>,
    bytes: usize,
}

impl RowByMatrix {
    pub(crate) fn new(device: &OpenDevice, precision: Dtype) -> Self {
        let side = 2048;
        let columns = size_of_copies(device) / precision.size() / side;
        let matrix = random([side, columns], device, precision);
        let bytes = side * columns * precision.size();
        Self { row: random([1, side], device, precision), matrix, bytes }
    }
}

impl Job for RowByMatrix {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        repeat("row by matrix", repeats, || self.row.clone().matmul(self.matrix.clone()))
    }

    fn amount(&self) -> Amount {
        let bytes = self.bytes as f64;
        Amount { count: bytes, unit: "B/s", flops: None, bytes: Some(bytes) }
    }

    fn what(&self) -> String {
        format!("a row by {} MiB", self.bytes >> 20)
    }

    fn can_repeat(&self) -> bool {
        true
    }
}

/// A software GPU copies with the CPU, so fewer bytes are enough.
fn size_of_copies(device: &OpenDevice) -> usize {
    if device.info.kind == DeviceKind::SoftwareGpu { 16 << 20 } else { 64 << 20 }
}

fn host_numbers(bytes: usize, precision: Dtype) -> TensorData {
    let count = bytes / precision.size();
    TensorData::new(vec![1.5f32; count], [count]).convert_dtype(burn_dtype(precision))
}

fn burn_dtype(precision: Dtype) -> DType {
    float_dtype(precision).into()
}

/// From the host to the device.
pub(crate) struct CopyToDevice {
    device: Arc<OpenDevice>,
    data: TensorData,
    dtype: DType,
    bytes: usize,
}

impl CopyToDevice {
    pub(crate) fn new(device: &Arc<OpenDevice>, precision: Dtype) -> Self {
        let bytes = size_of_copies(device);
        let (data, dtype) = (host_numbers(bytes, precision), burn_dtype(precision));
        Self { device: Arc::clone(device), data, dtype, bytes }
    }
}

impl Job for CopyToDevice {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        repeat("copy to device", repeats, || {
            Tensor::<1>::from_data(self.data.clone(), (self.device.burn(), self.dtype))
        })
    }

    fn amount(&self) -> Amount {
        Amount { count: self.bytes as f64, unit: "B/s", flops: None, bytes: None }
    }

    fn what(&self) -> String {
        format!("{} MiB", self.bytes >> 20)
    }
}

/// From the device to the host.
pub(crate) struct CopyToHost {
    x: Tensor<1>,
    bytes: usize,
}

impl CopyToHost {
    pub(crate) fn new(device: &Arc<OpenDevice>, precision: Dtype) -> Self {
        let bytes = size_of_copies(device);
        Self { x: random([bytes / precision.size()], device, precision), bytes }
    }
}

impl Job for CopyToHost {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        for _ in 0..repeats.max(1) {
            let data = self.x.clone().try_into_data();
            let data = data.map_err(|error| from_error("copy to host", error))?;
            std::hint::black_box(
                data.as_bytes().iter().step_by(4096).map(|b| u64::from(*b)).sum::<u64>(),
            );
        }
        Ok(())
    }

    fn amount(&self) -> Amount {
        Amount { count: self.bytes as f64, unit: "B/s", flops: None, bytes: None }
    }

    fn what(&self) -> String {
        format!("{} MiB", self.bytes >> 20)
    }
}
