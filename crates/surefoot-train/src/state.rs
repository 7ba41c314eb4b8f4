//! The state of a run after a step: weights, optimizer moments, loss scale. It is moved between devices
//! and copied to the host as a whole.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use surefoot::Fault;
use surefoot::device::DeviceName;
use surefoot::fault::{catch, from_error, from_panic};

use crate::optimizer::Moments;
use crate::parameters;
use crate::scale::LossScale;

/// A run at one step. Clones share tensors.
#[derive(Clone, Debug)]
pub struct State<M> {
    /// The model, without autodiff.
    pub model: M,
    /// What the optimizer remembers.
    pub moments: Moments,
    /// The factor of the loss.
    pub scale: LossScale,
    /// Steps done.
    pub step: u64,
    /// Where the tensors are.
    pub device: DeviceName,
}

/// A state in the host's memory: numbers that no device can take along when it is lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Each parameter's value.
    pub values: Vec<Vec<f32>>,
    /// Each parameter's first moment.
    pub first: Vec<Option<Vec<f32>>>,
    /// Each parameter's second moment.
    pub second: Vec<Option<Vec<f32>>>,
    /// How often weights were changed.
    pub updates: u64,
    /// The factor of the loss.
    pub scale: LossScale,
    /// Steps done.
    pub step: u64,
}

impl<M: Module> State<M> {
    /// The start of a run.
    pub fn new(model: M, device: DeviceName) -> Self {
        Self { model, moments: Moments::default(), scale: LossScale::default(), step: 0, device }
    }

    /// The same on another device.
    #[must_use]
    pub fn to_device(self, name: DeviceName, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        Self {
            // Clones share running statistics, which would move under the eyes of the others.
            model: self.model.valid().to_device(&device),
            moments: self.moments.to_device(&device),
            device: name,
            ..self
        }
    }

    /// Reads everything back to the host. A device that is gone may answer with a panic: that is
    /// a fault as well.
    pub fn hold(&self) -> Result<Held, Fault> {
        catch(|| self.read_back()).unwrap_or_else(|record| Err(from_panic("hold", &record)))
    }

    fn read_back(&self) -> Result<Held, Fault> {
        #[cfg(test)]
        tests::fail_if_asked()?;
        let moments = |moments: &[Option<Tensor<1>>]| {
            let read = |moment: &Option<Tensor<1>>| moment.as_ref().map(numbers).transpose();
            moments.iter().map(read).collect::<Result<Vec<_>, Fault>>()
        };
        let values = parameters::values(&self.model);
        Ok(Held {
            values: values.iter().map(numbers).collect::<Result<_, _>>()?,
            first: moments(&self.moments.first)?,
            second: moments(&self.moments.second)?,
            updates: self.moments.updates,
            scale: self.scale,
            step: self.step,
        })
    }

    /// A state from the host, in a model of the same shapes. The model's own tensors are moved to
    /// the device too, so they must be where they can be read: not on a device that is gone.
    pub fn from_held(held: Held, model: M, name: DeviceName, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let tensor = |numbers: Vec<f32>| {
            let size = [numbers.len()];
            Tensor::<1>::from_data(TensorData::new(numbers, size), &device)
        };
        let moments = |moments: Vec<Option<Vec<f32>>>| {
            moments.into_iter().map(|moment| moment.map(tensor)).collect()
        };
        let model = model.to_device(&device);
        let values = held.values.into_iter().map(tensor).collect();
        Self {
            model: parameters::with_values(model, values),
            moments: Moments::new(moments(held.first), moments(held.second), held.updates),
            scale: held.scale,
            step: held.step,
            device: name,
        }
    }
}

fn numbers(tensor: &Tensor<1>) -> Result<Vec<f32>, Fault> {
    let data = tensor.clone().try_into_data().map_err(|error| from_error("hold", error))?;
    let data = data.try_cast_as::<f32>().map_err(|error| from_error("hold", error))?;
    data.try_to_vec::<f32>().map_err(|error| from_error("hold", error))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::Cell;
    use surefoot::FaultKind;

    thread_local! {
        /// How often a state can be read back before each further try fails; no limit if none.
        pub(crate) static HOLDS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    pub(super) fn fail_if_asked() -> Result<(), Fault> {
        match HOLDS_LEFT.get() {
            None => Ok(()),
            Some(0) => Err(Fault::new(FaultKind::CommandBuffer, "hold", "it can't be read")),
            Some(left) => {
                HOLDS_LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}
