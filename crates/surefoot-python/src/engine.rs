//! PyTorch as an engine: what the core asks of a tensor library, answered by `surefoot._devices`.
//!
//! Values of Python are placed, taken apart and joined in Python, inside the guarded callable; the core sees them as
//! opaque. So of placement only devices' names are known here.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use surefoot_core::device::memory::{host_memory, peak_resident, resident};
use surefoot_core::device::{Backend, DeviceName, NameError};
use surefoot_core::engine::{Candidate, Engine, Failure};
use surefoot_core::fault::{classify, kind_of_std};
use surefoot_core::place::{Spot, Target};
use surefoot_core::precision::{Dtype, Precision, Resolved};
use surefoot_core::recover::Confirm;
use surefoot_core::{Fault, FaultKind};

use crate::error::fault_of;

/// PyTorch, through the module of Python that asks it.
#[derive(Debug)]
pub(crate) struct TorchEngine {
    /// `surefoot._devices`.
    devices: Py<PyAny>,
    /// What `auto` considers, as probing found it.
    candidates: Vec<Candidate>,
}

/// An open device.
#[derive(Debug)]
pub(crate) struct TorchDevice {
    name: DeviceName,
    label: String,
    hardware: String,
    total: Option<u64>,
    asynchronous: bool,
    shares_host: bool,
}

impl TorchEngine {
    pub(crate) fn new(devices: Py<PyAny>, candidates: Vec<Candidate>) -> Self {
        Self { devices, candidates }
    }

    /// Asks for a number; none where PyTorch doesn't know or fails.
    fn ask(&self, question: &str, device: &TorchDevice) -> Option<u64> {
        Python::attach(|py| {
            let answer = self.devices.bind(py).call_method1(question, (device.label.as_str(),));
            answer.and_then(|answer| answer.extract()).unwrap_or_default()
        })
    }

    pub(crate) fn available(&self, name: &str) -> Option<u64> {
        let asked = Python::attach(|py| {
            let answer = self.devices.bind(py).call_method1("available", (name,));
            answer.and_then(|answer| answer.extract::<Option<u64>>()).unwrap_or_default()
        });
        asked.or_else(|| (name == DeviceName::CPU.to_string()).then(|| host_memory().available))
    }
}

impl Engine for TorchEngine {
    type Device = TorchDevice;
    type Handle = String;
    type ElementType = String;

    fn candidates(&self) -> Vec<Candidate> {
        self.candidates.clone()
    }

    fn resolve(&self, name: DeviceName) -> Result<DeviceName, NameError> {
        // PyTorch reaches no GPU through wgpu; what it calls a device by another name was translated in Python.
        Ok(name)
    }

    fn open(&self, name: DeviceName) -> Result<Arc<TorchDevice>, Fault> {
        let label = name.to_string();
        if matches!(name.backend, Backend::Gpu | Backend::Vulkan) {
            let message =
                format!("PyTorch has no device '{label}': it knows mps, cuda, xpu and cpu");
            return Err(Fault::new(FaultKind::DriverOrInit, "open", message).on(label));
        }
        Python::attach(|py| {
            let fail = |error: PyErr| {
                let mut fault = fault_of(py, "open", error).on(&label);
                if fault.kind == FaultKind::NotDeviceRelated {
                    // Whatever its words are, a device that can't be opened is not there.
                    fault.kind = FaultKind::DriverOrInit;
                }
                fault.advise(format!("choose another device than '{label}', or device=\"auto\""))
            };
            let facts = self
                .devices
                .bind(py)
                .call_method1("open_device", (label.as_str(),))
                .map_err(fail)?;
            let facts = facts.cast_into::<PyDict>().map_err(|error| fail(error.into()))?;
            let read = || -> PyResult<TorchDevice> {
                let fact =
                    |key: &str| -> PyResult<Bound<'_, PyAny>> { facts.as_any().get_item(key) };
                Ok(TorchDevice {
                    name,
                    label: label.clone(),
                    hardware: fact("hardware")?.extract()?,
                    total: fact("total")?.extract()?,
                    asynchronous: fact("asynchronous")?.extract()?,
                    shares_host: fact("shares_host")?.extract()?,
                })
            };
            read().map(Arc::new).map_err(fail)
        })
    }

    fn probe(&self, device: &TorchDevice) -> Result<(), Fault> {
        match self.computes_in(device, Dtype::F32) {
            true => Ok(()),
            false => {
                let message = format!("{} computes wrong numbers", device.label);
                Err(Fault::new(FaultKind::Numeric, "probe", message).on(&device.label))
            }
        }
    }

    fn name(&self, device: &TorchDevice) -> DeviceName {
        device.name
    }

    fn hardware(&self, device: &TorchDevice) -> String {
        device.hardware.clone()
    }

    fn handle<'d>(&self, device: &'d TorchDevice) -> &'d String {
        &device.label
    }

    fn is_asynchronous(&self, device: &TorchDevice) -> bool {
        device.asynchronous
    }

    fn settle_precision(&self, device: &TorchDevice, wanted: Precision) -> Result<Resolved, Fault> {
        let (compute, reason) = match wanted {
            // PyTorch users expect what they wrote: fp32 unless they ask for less.
            Precision::Auto | Precision::Fp32 => (Dtype::F32, "it is the default"),
            Precision::Fp16 => (Dtype::F16, "it was asked for"),
            Precision::Bf16 => (Dtype::BF16, "it was asked for"),
        };
        if compute != Dtype::F32 && !self.computes_in(device, compute) {
            let message = format!("{} does not compute in {compute}", device.label);
            return Err(
                Fault::new(FaultKind::UnsupportedDtype, "select", message).on(&device.label)
            );
        }
        Ok(Resolved { compute, reason: reason.to_owned() })
    }

    fn computes_in(&self, device: &TorchDevice, dtype: Dtype) -> bool {
        Python::attach(|py| {
            let asked = (device.label.as_str(), dtype.as_str());
            let answer = self.devices.bind(py).call_method1("computes_in", asked);
            answer.and_then(|answer| answer.extract()).unwrap_or(false)
        })
    }

    fn memory_in_use(&self, device: &TorchDevice) -> u64 {
        if device.name.backend == Backend::Cpu {
            return resident();
        }
        self.ask("in_use", device).unwrap_or_default()
    }

    fn memory_peak(&self, device: &TorchDevice) -> u64 {
        if device.name.backend == Backend::Cpu {
            return peak_resident().unwrap_or_else(resident);
        }
        self.ask("peak", device).unwrap_or_else(|| self.memory_in_use(device))
    }

    fn memory_total(&self, device: &TorchDevice) -> Option<u64> {
        match device.name.backend {
            Backend::Cpu => Some(host_memory().total),
            _ => device.total,
        }
    }

    fn memory_available(&self, device: &TorchDevice) -> Option<u64> {
        match device.name.backend {
            Backend::Cpu => Some(host_memory().available),
            _ => self.ask("available", device),
        }
    }

    fn shares_host_memory(&self, device: &TorchDevice) -> bool {
        device.shares_host
    }

    fn reclaim(&self, device: &TorchDevice) -> u64 {
        let before = self.memory_in_use(device);
        // What fails here fails again, and with a better message, in the attempt that follows.
        let _ = Python::attach(|py| {
            self.devices.bind(py).call_method1("reclaim", (device.label.as_str(),)).map(drop)
        });
        before.saturating_sub(self.memory_in_use(device))
    }

    fn is_misplaced(&self, spot: &Spot<Self>, target: &Target<Self>) -> Result<bool, Fault> {
        Ok(spot.device != target.device)
    }

    fn classify(&self, operation: &str, failure: Failure) -> Fault {
        let error = match failure {
            Failure::Panic(record) => {
                return Fault::new(FaultKind::NotDeviceRelated, operation, record.message);
            }
            Failure::Error(error) => error,
        };
        match error.downcast::<PyErr>() {
            Ok(error) => Python::attach(|py| fault_of(py, operation, *error)),
            Err(error) => classify(operation, error, kind_of_std, surefoot_explain::kind_of_text),
        }
    }
}

/// A result of guarded work: any value of Python, on the device that computed it.
#[derive(Debug)]
pub(crate) struct PyValue {
    pub(crate) object: Py<PyAny>,
    pub(crate) device: DeviceName,
    pub(crate) devices: Py<PyAny>,
}

impl Confirm<TorchEngine> for PyValue {
    fn confirm(&self, operation: &str) -> Result<(), Fault> {
        Python::attach(|py| {
            let waited =
                self.devices.bind(py).call_method1("synchronize", (self.device.to_string(),));
            waited.map(drop).map_err(|error| fault_of(py, operation, error))
        })
    }
}
