//! The workloads that are measured.

mod decode;
mod kernels;
mod training;

use std::sync::Arc;

use surefoot::Fault;
use surefoot::device::OpenDevice;
use surefoot::place::Dtype;

pub use training::TrainingSetup;

/// The size of one run of a workload.
#[derive(Clone, Debug, Default)]
pub struct Amount {
    /// What is counted: samples, tokens, bytes or operations.
    pub count: f64,
    /// The unit of that count per second; `FLOP/s` and `B/s` get SI prefixes.
    pub unit: &'static str,
    /// Floating-point operations of its matrix products, if they are the limit.
    pub flops: Option<f64>,
    /// Bytes that must be read and written, if memory is the limit.
    pub bytes: Option<f64>,
}

/// A workload that is ready to run on its device.
pub trait Job {
    /// Runs it `repeats` times and reads a value that depends on the result.
    fn run(&mut self, repeats: u32) -> Result<(), Fault>;

    /// The size of one run.
    fn amount(&self) -> Amount;

    /// A description of what is run.
    fn what(&self) -> String;

    /// Whether several runs may be submitted before a result is read. Where the host needs each
    /// result, such as a loss or a token, every run is read.
    fn can_repeat(&self) -> bool {
        false
    }
}

/// A kind of work.
#[derive(Clone)]
pub enum Workload {
    /// A product of square matrices.
    Matmul,
    /// A convolution of images.
    Convolution,
    /// Scaled dot-product attention.
    Attention,
    /// One step of training an MLP.
    MlpStep,
    /// One step of training a residual network.
    CnnStep,
    /// One token of a decoder with its cache.
    DecodeStep,
    /// From the host to the device.
    CopyToDevice,
    /// From the device to the host.
    CopyToHost,
    /// One step of the user's own training.
    Configured(Arc<TrainingSetup>),
}

impl Workload {
    /// The built-in workloads.
    pub const ALL: [Self; 8] = [
        Self::Matmul,
        Self::Convolution,
        Self::Attention,
        Self::MlpStep,
        Self::CnnStep,
        Self::DecodeStep,
        Self::CopyToDevice,
        Self::CopyToHost,
    ];

    /// Its name in reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Matmul => "matmul",
            Self::Convolution => "convolution",
            Self::Attention => "attention",
            Self::MlpStep => "mlp training step",
            Self::CnnStep => "cnn training step",
            Self::DecodeStep => "decode step",
            Self::CopyToDevice => "copy to device",
            Self::CopyToHost => "copy to host",
            Self::Configured(setup) => &setup.name,
        }
    }

    /// Makes the work ready on `device` in `precision`.
    pub fn prepare(
        &self,
        device: &Arc<OpenDevice>,
        precision: Dtype,
    ) -> Result<Box<dyn Job>, Fault> {
        Ok(match self {
            Self::Matmul => Box::new(kernels::Matmul::new(device, precision, 1024)),
            Self::Convolution => Box::new(kernels::Convolution::new(device, precision)),
            Self::Attention => Box::new(kernels::Attention::new(device, precision)),
            Self::MlpStep => Box::new(training::mlp(device, precision)?),
            Self::CnnStep => Box::new(training::cnn(device, precision)?),
            Self::DecodeStep => Box::new(decode::Decode::new(device, precision)),
            Self::CopyToDevice => Box::new(kernels::CopyToDevice::new(device, precision)),
            Self::CopyToHost => Box::new(kernels::CopyToHost::new(device, precision)),
            Self::Configured(setup) => Box::new(training::configured(setup, device, precision)?),
        })
    }

    /// Why this work means nothing on a device, if so.
    pub fn why_not(&self, device: &OpenDevice) -> Option<&'static str> {
        let shares = !device.is_asynchronous();
        match self {
            Self::CopyToDevice | Self::CopyToHost if shares => {
                Some("the device is the host: nothing is copied")
            }
            _ => None,
        }
    }
}

pub(crate) use kernels::{AddOne, Matmul, RowByMatrix};
