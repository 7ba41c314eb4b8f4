//! What methods of tensors and models do to them.

use ruff_python_ast::Expr;
use ruff_text_size::Ranged;

use super::device::{Device, Places};
use super::event::Call;
use super::make::dtype_argument;
use super::value::{Dims, Kind, ObjectId, State, TorchDtype, Value};
use super::walk::Walker;

/// Methods of tensors that look at the same storage.
pub(crate) const VIEWS: [&str; 16] = [
    "view",
    "view_as",
    "reshape",
    "expand",
    "expand_as",
    "transpose",
    "t",
    "permute",
    "squeeze",
    "unsqueeze",
    "flatten",
    "detach",
    "narrow",
    "select",
    "unfold",
    "swapaxes",
];

/// Methods of tensors that say something about it without reading its values.
pub(crate) const SHAPE_QUESTIONS: [&str; 14] = [
    "size",
    "dim",
    "numel",
    "stride",
    "element_size",
    "nelement",
    "ndimension",
    "data_ptr",
    "is_contiguous",
    "storage_offset",
    "get_device",
    "is_floating_point",
    "untyped_storage",
    "storage",
];

/// Where `.to(…)` and its like bring something, and in which dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Destination {
    pub(crate) device: Option<Device>,
    pub(crate) dtype: Option<TorchDtype>,
}

/// Reads a call of `.to`, `.cuda`, `.cpu`, `.half` and their like; `None` for other methods.
pub(crate) fn destination(call: &Call<'_>) -> Option<Destination> {
    let device = |place, index| Device::Literal { place, index };
    let only_device = |device| Some(Destination { device: Some(device), dtype: None });
    let only_dtype = |dtype| Some(Destination { device: None, dtype: Some(dtype) });
    match call.method()? {
        "to" => {
            let mut found = Destination { device: None, dtype: None };
            let given = call.args.iter().chain(call.keyword("device")).chain(call.keyword("dtype"));
            for snap in given {
                match &snap.value {
                    Value::Dtype(dtype) => found.dtype = Some(*dtype),
                    Value::Object(_) => {
                        found.device = Some(snap.state.device);
                        found.dtype = Some(snap.state.dtype);
                    }
                    Value::Int(n) => {
                        found.device = Some(device(Places::CUDA, u8::try_from(*n).ok()));
                    }
                    Value::Bool(_) => {}
                    value => match value.as_device() {
                        Some(device) => found.device = Some(device),
                        // Not to be told: a device or a dtype.
                        None => {
                            found.device = Some(Device::Unknown);
                            found.dtype = found.dtype.or(Some(TorchDtype::Unknown));
                        }
                    },
                }
            }
            Some(found)
        }
        "cuda" => match call.args.first().map(|snap| &snap.value) {
            None | Some(Value::None) => only_device(device(Places::CUDA, None)),
            Some(Value::Int(n)) => only_device(device(Places::CUDA, u8::try_from(*n).ok())),
            Some(_) => only_device(Device::Unknown),
        },
        "cpu" => only_device(Device::CPU),
        "double" => only_dtype(TorchDtype::F64),
        "float" => only_dtype(TorchDtype::F32),
        "half" => only_dtype(TorchDtype::F16),
        "bfloat16" => only_dtype(TorchDtype::Bf16),
        _ => None,
    }
}

impl<'a> Walker<'a> {
    pub(super) fn method_effect(&mut self, name: &str, call: &Call<'a>) -> Value<'a> {
        let arguments: Vec<Value<'a>> = call
            .args
            .iter()
            .chain(call.keywords.iter().map(|(_, snap)| snap))
            .map(|snap| snap.value.clone())
            .collect();
        for value in &arguments {
            self.escape(value);
        }
        match &call.receiver.value {
            Value::Object(id) => {
                let id = *id;
                match self.facts.objects[id as usize].kind {
                    Kind::Tensor => self.tensor_method(id, name, call),
                    Kind::Model | Kind::Criterion => self.model_method(id, name, call),
                    _ => Value::Unknown,
                }
            }
            Value::Array { double } => match name {
                "astype" => Value::Array { double: false },
                "reshape" | "copy" | "flatten" | "transpose" => Value::Array { double: *double },
                _ => Value::Unknown,
            },
            // A batch that moves itself, such as those of tokenizers.
            Value::Batch(_) => Value::Unknown,
            _ => {
                if matches!(name, "parameters" | "named_parameters")
                    && let Some(id) = self.root_model(call)
                {
                    return Value::Parameters(id);
                }
                self.hand_over(call);
                Value::Unknown
            }
        }
    }

    /// The model at the root of `model.layer.parameters()`.
    fn root_model(&self, call: &Call<'a>) -> Option<ObjectId> {
        let Expr::Attribute(attribute) = &*call.node.func else { return None };
        let mut expr = &*attribute.value;
        loop {
            if let Some(place) = self.place(expr)
                && let Some(Value::Object(id)) = self.flow.get(place)
                && self.facts.objects[*id as usize].kind == Kind::Model
            {
                return Some(*id);
            }
            match expr {
                Expr::Attribute(inner) => expr = &inner.value,
                Expr::Subscript(inner) => expr = &inner.value,
                _ => return None,
            }
        }
    }

    fn tensor_method(&mut self, id: ObjectId, name: &str, call: &Call<'a>) -> Value<'a> {
        let state = self.state_of(id);
        let range = call.node.range();
        if let Some(to) = destination(call) {
            let device = to.device.unwrap_or(state.device);
            let dtype = to.dtype.unwrap_or(state.dtype);
            // What moves unwritten storage is reported there; after that it is as good as known.
            let moved = State { device, dtype, filled: true, ..state };
            self.facts.objects[id as usize].last_device = device;
            let result = self.tensor(range, name, moved);
            if let Value::Object(new) = result {
                let object = &self.facts.objects[id as usize];
                let (made, maker, elements) = (object.made, object.maker.clone(), object.elements);
                let object = &mut self.facts.objects[new as usize];
                (object.made, object.maker, object.elements) = (made, maker, elements);
            }
            return result;
        }
        if name.ends_with('_') && !name.ends_with("__") {
            self.flow.states.insert(id, State { filled: true, ..state });
            return Value::Object(id);
        }
        match name {
            "detach" | "clone" if name == "detach" || state.filled => {
                self.tensor(range, name, State { graph: state.graph && name != "detach", ..state })
            }
            name if VIEWS.contains(&name) && !state.filled => Value::Object(id),
            "pin_memory" | "share_memory_" | "requires_grad_" | "contiguous" if !state.filled => {
                Value::Object(id)
            }
            "new_empty" | "new_zeros" | "new_ones" | "new_full" | "new_tensor" => {
                let device = self.device_argument(call).unwrap_or(state.device);
                let dtype = dtype_argument(call).unwrap_or(state.dtype);
                let empty = call.args.iter().any(|snap| match &snap.value {
                    Value::Int(n) => *n == 0,
                    Value::Sequence(parts) => parts.is_empty() || parts.contains(&Value::Int(0)),
                    _ => false,
                });
                let filled = name != "new_empty" || empty || device.is(Places::META);
                self.tensor(
                    range,
                    name,
                    State { device, dtype, filled, dims: Dims::Some, graph: false },
                )
            }
            "chunk" | "split" | "unbind" | "tensor_split" | "numpy" | "data_ptr" | "__dlpack__"
            | "untyped_storage" | "storage"
                if !state.filled =>
            {
                // Whoever holds a part or the address can fill it.
                self.escape(&Value::Object(id));
                self.tensor(range, name, State { dims: Dims::Unknown, filled: true, ..state })
            }
            "item" | "tolist" | "numpy" | "backward" | "type" | "__len__" => Value::Unknown,
            name if SHAPE_QUESTIONS.contains(&name) => Value::Unknown,
            "max" | "min" | "sort" | "topk" | "chunk" | "split" | "unbind" => {
                self.tensor(range, name, State { dims: Dims::Unknown, filled: true, ..state })
            }
            _ => {
                let mut state = State { dims: Dims::Unknown, filled: true, ..state };
                for snap in &call.args {
                    if snap.value.object().is_some() {
                        state.graph |= snap.state.graph;
                    }
                }
                self.tensor(range, name, state)
            }
        }
    }

    fn model_method(&mut self, id: ObjectId, name: &str, call: &Call<'a>) -> Value<'a> {
        let state = self.state_of(id);
        if let Some(to) = destination(call) {
            let device = to.device.unwrap_or(state.device);
            let dtype = to.dtype.unwrap_or(state.dtype);
            self.flow.states.insert(id, State { device, dtype, ..state });
            if to.device.is_some() {
                self.facts.objects[id as usize].last_device = device;
            }
            return Value::Object(id);
        }
        match name {
            "eval" | "train" | "requires_grad_" | "apply" | "to_empty" => {
                if name == "to_empty" {
                    self.flow.states.insert(id, State { device: Device::Unknown, ..state });
                }
                Value::Object(id)
            }
            "parameters" | "named_parameters" => Value::Parameters(id),
            "forward" => {
                let graph = !self.facts.gradients_off(self.context);
                let state = State { graph, ..State::on(state.device) };
                self.tensor(call.node.range(), "a model's output", state)
            }
            _ => Value::Unknown,
        }
    }
}
