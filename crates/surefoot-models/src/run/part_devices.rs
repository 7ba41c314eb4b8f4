//! Which device each part of a model is on: its blocks in order, and the head behind them.
//!
//! A model is on one device, or laid over several by a plan. In the latter case a failure must name the device that it
//! happened on, since recovery goes on without that one: [`PartDevices::attributed`].

use burn::tensor::{Device, Tensor};
use surefoot::device::DeviceName;
use surefoot::fault::{catch, from_panic};

use crate::error::ModelError;

/// The device of each block, and behind them of the head.
#[derive(Clone, Debug)]
pub(crate) struct PartDevices {
    devices: Vec<Device>,
    /// What they are called, where there are several.
    names: Option<Vec<DeviceName>>,
}

impl PartDevices {
    /// All of `blocks` blocks and the head on one device.
    pub(crate) fn single(device: &Device, blocks: usize) -> Self {
        Self { devices: vec![device.clone(); blocks + 1], names: None }
    }

    /// One device for each block, and one for the head.
    pub(crate) fn several(parts: Vec<(DeviceName, Device)>) -> Self {
        let (names, devices) = parts.into_iter().unzip();
        Self { devices, names: Some(names) }
    }

    /// The device of a part; the head is behind the last block.
    pub(crate) fn of(&self, part: usize) -> &Device {
        &self.devices[part.min(self.devices.len() - 1)]
    }

    /// The head's.
    pub(crate) fn head(&self) -> &Device {
        self.of(self.devices.len() - 1)
    }

    /// The devices of the blocks, and behind them of the head.
    pub(crate) fn all(&self) -> &[Device] {
        &self.devices
    }

    /// What the devices of all parts are called, if there are several.
    pub(crate) fn names(&self) -> Option<&[DeviceName]> {
        self.names.as_deref()
    }

    /// Runs work of a part, and names the part's device in its fault, if there are several devices.
    pub(crate) fn attributed<T>(
        &self,
        part: usize,
        operation: &str,
        work: impl FnOnce() -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let Some(names) = &self.names else { return work() };
        let name = names[part.min(names.len() - 1)].to_string();
        let error = match catch(work) {
            Ok(Err(ModelError::Fault(fault))) => fault,
            Ok(other) => return other,
            Err(panic) => Box::new(from_panic(operation, &panic)),
        };
        Err(ModelError::Fault(match error.device {
            Some(_) => error,
            None => Box::new(error.on(name)),
        }))
    }

    /// Moves the hidden state from the device of part `from` to that of part `to`. What fails here was computed before,
    /// on the former.
    pub(crate) fn cross(
        &self,
        x: Tensor<2>,
        from: usize,
        to: usize,
    ) -> Result<Tensor<2>, ModelError> {
        let device = self.of(to);
        if x.device() == *device {
            return Ok(x);
        }
        self.attributed(from, "moving the hidden state", || Ok(x.to_device(device)))
    }
}
