//! Burn's devices for the suites.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use surefoot::Burn;
use surefoot::device::{Backend, DeviceName, OpenDevice, named, open};
use surefoot::recover::Step;

use crate::suite::Lab;

/// Set in CI's GPU lane: a GPU that isn't there is a failure, not a skip.
pub const REQUIRE_GPU: &str = "SUREFOOT_REQUIRE_GPU";

/// The CPU under a second name, for tests that need two devices.
pub const SECOND_CPU: DeviceName = DeviceName { backend: Backend::Cpu, index: 1 };

/// The CPU.
pub fn cpu() -> Option<Arc<OpenDevice>> {
    Some(open(DeviceName::CPU).expect("the CPU opens"))
}

/// The first GPU of this build; without one the caller skips, or fails if [`REQUIRE_GPU`] is
/// set.
pub fn gpu() -> Option<Arc<OpenDevice>> {
    let name = std::env::var("SUREFOOT_TEST_GPU").unwrap_or_else(|_| "gpu".to_owned());
    let opened = named(&name)
        .map_err(|error| error.to_string())
        .and_then(|name| open(name).map_err(|fault| fault.to_string()));
    match opened {
        Ok(device) => Some(device),
        Err(why) if std::env::var_os(REQUIRE_GPU).is_some() => panic!("a GPU is required: {why}"),
        Err(why) => {
            eprintln!("skipped, no GPU: {why}");
            None
        }
    }
}

/// The chain that fault matrices run on: the device that `SUREFOOT_TEST_DEVICE` names, or else the
/// CPU under its second name; and the CPU to go on with.
pub fn chain_under_test() -> Vec<DeviceName> {
    let first = match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => named(&name).unwrap_or_else(|error| panic!("SUREFOOT_TEST_DEVICE: {error}")),
        Err(_) => SECOND_CPU,
    };
    vec![first, DeviceName::CPU]
}

impl Lab for Burn {
    type Numbers = Tensor<1>;

    fn on_host(values: &[f32]) -> Tensor<1> {
        Tensor::from_floats(values, &Device::flex())
    }

    fn on_device(step: &Step<'_>, values: &[f32]) -> Tensor<1> {
        Tensor::from_floats(values, step.device())
    }

    fn scaled(numbers: Tensor<1>, factor: f32) -> Tensor<1> {
        numbers * factor
    }

    fn read(numbers: &Tensor<1>) -> Vec<f32> {
        numbers.to_data_as::<f32>().try_to_vec().expect("fp32")
    }

    fn is_on(step: &Step<'_>, numbers: &Tensor<1>) -> bool {
        numbers.device() == *step.device()
    }
}
