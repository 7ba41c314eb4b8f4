//! The work that is measured.

mod decode;
mod kernels;
mod training;

use std::sync::Arc;

use surefoot::Fault;
use surefoot::device::OpenDevice;
use surefoot::place::Dtype;

pub use training::Own;

/// How much one piece of work is.
#[derive(Clone, Debug, Default)]
pub struct Amount {
    /// What a person counts: samples, tokens, bytes, operations.
    pub count: f64,
    /// What that is called when it is counted a second; `FLOP/s` and `B/s` are scaled.
    pub unit: &'static str,
    /// Operations of its products, if they are what limits it.
    pub flops: Option<f64>,
    /// Bytes that must go through memory, if that is what limits it.
    pub bytes: Option<f64>,
}

/// Work that is ready to run on its device.
pub trait Job {
    /// Does the work `repeats` times and reads a value that depends on it.
    fn run(&mut self, repeats: u32) -> Result<(), Fault>;

    /// How much one run is.
    fn amount(&self) -> Amount;

    /// What exactly is run.
    fn what(&self) -> String;

    /// Whether several runs may follow each other before one is read. Work whose result the
    /// next piece needs on the host, as a loss or a token, is read each time.
    fn can_repeat(&self) -> bool {
        false
    }
}

/// A sort of work.
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
    /// And back.
    CopyToHost,
    /// One step of the user's own training.
    Own(Arc<Own>),
}

impl Workload {
    /// What is measured unless the user brings work of their own.
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
            Self::Own(own) => &own.name,
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
            Self::Own(own) => Box::new(training::own(own, device, precision)?),
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
