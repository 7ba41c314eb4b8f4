//! Burn as an engine of the core.

use std::sync::Arc;

use burn::tensor::{DType, Device};
use surefoot_core::engine::{Candidate, Engine, Failure};
use surefoot_core::place::{Spot, Target};
use surefoot_core::precision::{Dtype, Precision, Resolved};

use crate::device::discover::look;
use crate::device::{Backend, DeviceName, NameError, OpenDevice, is_in_build, open, resolve};
use crate::fault::{self, Fault, FaultKind};
use crate::place::{Autocast, DtypeSupport, dtype_of, for_tensor, probe_dtype, settle};
use crate::recover::Step;

/// The Burn tensor library.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burn;

impl Engine for Burn {
    type Device = OpenDevice;
    type Handle = Device;
    type ElementType = DType;

    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |backend| {
            let name = DeviceName { backend, index: 0 };
            if name == DeviceName::CPU {
                return Candidate { name, passed_over: None };
            }
            let found = look(name);
            let passed_over = if let Some(why) = &found.unavailable {
                Some(format!("{name} is not available: {why}"))
            } else if !found.is_worth_choosing() {
                Some(format!("{name} is a driver that computes on the CPU, slower than cpu"))
            } else {
                None
            };
            Candidate { name, passed_over }
        };
        Backend::PREFERRED
            .into_iter()
            .filter(|backend| is_in_build(*backend))
            .map(candidate)
            .collect()
    }

    fn resolve(&self, name: DeviceName) -> Result<DeviceName, NameError> {
        resolve(name)
    }

    fn open(&self, name: DeviceName) -> Result<Arc<OpenDevice>, Fault> {
        open(name)
    }

    fn probe(&self, device: &OpenDevice) -> Result<(), Fault> {
        match probe_dtype(device, Dtype::F32) {
            DtypeSupport::Works => Ok(()),
            support => Err(crate::place::does_not_compute(device, Dtype::F32, support)),
        }
    }

    fn name(&self, device: &OpenDevice) -> DeviceName {
        device.name()
    }

    fn hardware(&self, device: &OpenDevice) -> String {
        device.info.label.clone()
    }

    fn handle<'d>(&self, device: &'d OpenDevice) -> &'d Device {
        device.burn()
    }

    fn is_asynchronous(&self, device: &OpenDevice) -> bool {
        device.is_asynchronous()
    }

    fn settle_precision(&self, device: &OpenDevice, wanted: Precision) -> Result<Resolved, Fault> {
        settle(device, wanted)
    }

    fn computes_in(&self, device: &OpenDevice, dtype: Dtype) -> bool {
        probe_dtype(device, dtype) == DtypeSupport::Works
    }

    fn memory_in_use(&self, device: &OpenDevice) -> u64 {
        device.memory_in_use()
    }

    fn memory_peak(&self, device: &OpenDevice) -> u64 {
        device.memory_peak()
    }

    fn memory_total(&self, device: &OpenDevice) -> Option<u64> {
        device.info.memory_total
    }

    fn memory_available(&self, device: &OpenDevice) -> Option<u64> {
        device.memory_available()
    }

    fn shares_host_memory(&self, device: &OpenDevice) -> bool {
        device.info.unified_memory
    }

    fn reclaim(&self, device: &OpenDevice) -> u64 {
        device.reclaim()
    }

    fn is_misplaced(&self, spot: &Spot<Self>, target: &Target<Self>) -> Result<bool, Fault> {
        let casts = dtype_of(spot.dtype).is_some_and(|dtype| dtype != target.dtype);
        if casts && spot.dtype == DType::F64 {
            let message = format!(
                "{spot}; the run computes in {} on {}: casting it would drop digits",
                target.dtype, target.name
            );
            return Err(Fault::new(FaultKind::DtypeMismatch, "place", message)
                .on(target.name.to_string())
                .advise("cast the fp64 tensor to fp32 yourself if its extra digits don't matter"));
        }
        Ok(casts || spot.device != for_tensor(target, spot.device.is_autodiff()))
    }

    fn classify(&self, operation: &str, failure: Failure) -> Fault {
        match failure {
            Failure::Error(error) => fault::from_error(operation, error),
            Failure::Panic(record) => fault::from_panic(operation, &record),
        }
    }
}

/// What a try of guarded work offers on Burn's devices besides the core's own methods.
pub trait StepExt {
    /// The device with autodiff, and with gradient checkpointing once that rung was taken.
    fn autodiff_device(&self) -> Device;

    /// The casts for this try's precision.
    fn autocast(&self) -> Autocast;
}

impl StepExt for Step<'_> {
    fn autodiff_device(&self) -> Device {
        let device = self.device().clone().autodiff();
        if self.is_checkpointing() { device.gradient_checkpointing() } else { device }
    }

    fn autocast(&self) -> Autocast {
        Autocast::new(self.compute())
    }
}
