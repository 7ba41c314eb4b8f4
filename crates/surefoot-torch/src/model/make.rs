//! What a call makes: a tensor's device, dtype and size, a loader's batches, a device.

use ruff_text_size::Ranged;

use super::device::{Device, Places};
use super::event::{Call, Snap};
use super::value::{Dims, State, TorchDtype, Value};
use super::walk::Walker;

impl<'a> Walker<'a> {
    /// Where the batches of a loader are: known for tensors, torchvision's data and data sets of
    /// this file that don't speak of devices.
    pub(super) fn batch_device(&self, call: &Call<'a>) -> Device {
        if call.keyword("collate_fn").is_some()
            || call.is_open()
            || self.facts.mentions.default_device
        {
            return Device::Unknown;
        }
        match call.argument(0, "dataset") {
            Some(snap) => match snap.value {
                Value::Object(id) => match self.facts.objects[id as usize].class {
                    Some(class) if self.facts.classes[class].touches_devices => Device::Unknown,
                    Some(_) => Device::CPU,
                    None => snap.state.device,
                },
                Value::Unknown => Device::CPU,
                _ => Device::Unknown,
            },
            None => Device::Unknown,
        }
    }

    pub(super) fn made(&self, call: &Call<'a>, filled: bool) -> State {
        let given = self.device_argument(call);
        let device = match given {
            Some(device) => device,
            None if call.is_open() => Device::Unknown,
            None => self.default_device(),
        };
        // A tensor on the meta device has no storage to fill.
        let filled = filled || device.is(Places::META) || !device.is_known() && given.is_none();
        let dtype = dtype_argument(call).unwrap_or(TorchDtype::Unknown);
        State { device, dtype, filled, dims: Dims::Some, graph: false }
    }

    /// A tensor whose sizes may be written as literals; one of no elements needs no filling.
    pub(super) fn sized(&mut self, call: &Call<'a>, path: &str, mut state: State) -> Value<'a> {
        let mut elements = Some(1u64);
        let mut count = |value: &Value<'_>| match value {
            Value::Int(n) => {
                elements = elements.and_then(|e| e.checked_mul(u64::try_from(*n).ok()?));
                *n == 0
            }
            _ => {
                elements = None;
                false
            }
        };
        let mut empty = false;
        for snap in &call.args {
            match &snap.value {
                Value::Sequence(parts) => {
                    empty |= parts.is_empty();
                    parts.iter().for_each(|part| empty |= count(part));
                }
                value => empty |= count(value),
            }
        }
        if let Some(size) = call.keyword("size")
            && let Value::Sequence(parts) = &size.value
        {
            parts.iter().for_each(|part| empty |= count(part));
        }
        state.filled |= empty;
        if matches!(path, "torch.arange" | "torch.linspace" | "torch.eye" | "torch.full") {
            elements = None;
        }
        let Value::Object(id) = self.tensor(call.node.range(), path, state) else {
            return Value::Unknown;
        };
        self.facts.objects[id as usize].elements = elements;
        Value::Object(id)
    }

    pub(super) fn copied(&mut self, path: &str, call: &Call<'a>) -> Value<'a> {
        let data = call.argument(0, "data");
        let dims = match data.map(|snap| &snap.value) {
            Some(Value::Sequence(_)) => Dims::Some,
            Some(Value::Int(_) | Value::Float | Value::Bool(_)) => Dims::Scalar,
            _ => Dims::Unknown,
        };
        let source = data.map_or(State::UNKNOWN, |snap| snap.state);
        let known = matches!(dims, Dims::Some | Dims::Scalar);
        let device = match self.device_argument(call) {
            Some(device) => device,
            None if known => self.default_device(),
            None => source.device,
        };
        let double = matches!(data.map(|snap| &snap.value), Some(Value::Array { double: true }));
        let dtype = match dtype_argument(call) {
            Some(dtype) => dtype,
            None if double => TorchDtype::F64,
            None => source.dtype,
        };
        self.tensor(
            call.node.range(),
            path,
            State { device, dtype, filled: true, dims, graph: false },
        )
    }

    /// `torch.Tensor(2, 3)` allocates, `torch.Tensor([2, 3])` copies data.
    pub(super) fn old_constructor(&mut self, path: &str, call: &Call<'a>) -> Value<'a> {
        let sizes = !call.args.is_empty()
            && call.args.iter().all(|snap| matches!(snap.value, Value::Int(_)));
        let state = self.made(call, !sizes);
        if sizes {
            return self.sized(call, path, state);
        }
        let dims = match call.args.first().map(|snap| &snap.value) {
            Some(Value::Sequence(_)) => Dims::Some,
            _ => Dims::Unknown,
        };
        self.tensor(call.node.range(), path, State { dims, ..state })
    }

    pub(super) fn device_call(&mut self, call: &Call<'a>) -> Value<'a> {
        let name = call.argument(0, "type").or_else(|| call.keyword("device"));
        let Some(name) = name else { return Value::Unknown };
        let indexed = call.args.len() > 1 || call.keyword("index").is_some();
        match name.value.as_device() {
            Some(Device::Literal { place, .. }) if indexed => {
                match call.argument(1, "index").map(|snap| &snap.value) {
                    Some(Value::Int(n)) => {
                        let index = u8::try_from(*n).ok();
                        Value::Device(Device::Literal { place, index })
                    }
                    _ => Value::Device(self.fresh_device(place)),
                }
            }
            Some(device) => Value::Device(device),
            None => Value::Device(self.fresh_device(Places::ANY)),
        }
    }

    /// The `device=` given, if any; what can't be read as a device is unknown.
    pub(super) fn device_argument(&self, call: &Call<'a>) -> Option<Device> {
        let given = call.keyword("device")?;
        match &given.value {
            Value::None => None,
            Value::Int(n) => {
                Some(Device::Literal { place: Places::CUDA, index: u8::try_from(*n).ok() })
            }
            value => Some(value.as_device().unwrap_or(Device::Unknown)),
        }
    }
}

pub(super) fn dtype_argument(call: &Call<'_>) -> Option<TorchDtype> {
    let given = call.keyword("dtype").or_else(|| call.keyword("torch_dtype"))?;
    Some(match given.value {
        Value::Dtype(dtype) => dtype,
        _ => TorchDtype::Unknown,
    })
}

pub(super) fn common_device(args: &[Snap<'_>]) -> Device {
    let mut devices = args.iter().map(|snap| match snap.value {
        Value::Object(_) => snap.state.device,
        _ => Device::Unknown,
    });
    let first = devices.next().unwrap_or(Device::Unknown);
    if devices.all(|device| device == first) { first } else { Device::Unknown }
}
