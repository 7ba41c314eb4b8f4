//! What calls do: what is called, with what, and what comes out.

use ruff_python_ast::{Expr, ExprCall};
use ruff_text_size::{Ranged, TextRange};

use super::api::{self, Api};
use super::context::With;
use super::device::{Device, Places};
use super::event::{Call, EventKind, Snap, Target};
use super::make::{common_device, dtype_argument};
use super::value::{Dims, Kind, ObjectId, State, TorchDtype, Value};
use super::walk::Walker;

impl<'a> Walker<'a> {
    pub(super) fn call(&mut self, node: &'a ExprCall, dropped: bool) -> Value<'a> {
        let (target, receiver) = self.target(&node.func);
        let receiver = self.snap(receiver);
        let mut args = Vec::with_capacity(node.arguments.args.len());
        for arg in &node.arguments.args {
            let value = self.eval(arg);
            args.push(self.snap(value));
        }
        let mut keywords = Vec::with_capacity(node.arguments.keywords.len());
        for keyword in &node.arguments.keywords {
            let value = self.eval(&keyword.value);
            let name = keyword.arg.as_ref().map(|name| name.as_str());
            keywords.push((name, self.snap(value)));
        }
        let unknown = Snap { value: Value::Unknown, state: State::UNKNOWN };
        let mut call =
            Box::new(Call { node, target, receiver, args, keywords, result: unknown, dropped });
        let value = self.effect(&call);
        call.result = self.snap(value.clone());
        self.record(node.range(), EventKind::Call(call));
        value
    }

    fn target(&mut self, func: &'a Expr) -> (Target<'a>, Value<'a>) {
        match func {
            Expr::Name(name) => {
                let id = name.id.as_str();
                match self.flow.get(id).cloned() {
                    Some(value) => self.target_of(value, id),
                    None => (Target::Name(id), Value::Unknown),
                }
            }
            Expr::Attribute(attribute) => {
                let name = attribute.attr.as_str();
                let place = self.place(func);
                // self.model(x): the attribute itself is what is called.
                if let Some(place) = place
                    && let Some(value) = self.flow.get(place).cloned()
                    && value != Value::Unknown
                {
                    return self.target_of(value, place);
                }
                match self.eval(&attribute.value) {
                    Value::Path(path) => {
                        let full = format!("{path}.{name}");
                        (Target::Path(api::canonical(&full).into()), Value::Unknown)
                    }
                    receiver => {
                        let place = self.place(&attribute.value);
                        (Target::Method { name, place }, receiver)
                    }
                }
            }
            other => {
                let value = self.eval(other);
                match value {
                    Value::Object(_) => (Target::Object, value),
                    _ => (Target::Unknown, Value::Unknown),
                }
            }
        }
    }

    fn target_of(&self, value: Value<'a>, name: &'a str) -> (Target<'a>, Value<'a>) {
        match value {
            Value::Path(path) => (Target::Path(path), Value::Unknown),
            Value::Object(_) => (Target::Object, value),
            Value::Class(index) => (Target::Class(index), Value::Unknown),
            Value::Function(index) => (Target::Local(index), Value::Unknown),
            _ => (Target::Name(name), Value::Unknown),
        }
    }

    fn effect(&mut self, call: &Call<'a>) -> Value<'a> {
        if let Some(out) = call.keyword("out") {
            let out = out.value.clone();
            self.escape(&out);
        }
        match &call.target {
            Target::Path(path) => self.path_effect(path, call),
            Target::Method { name, .. } => self.method_effect(name, call),
            Target::Object => self.object_effect(call),
            Target::Class(index) => {
                self.escape_arguments(call);
                self.instance(*index, call.node.range())
            }
            Target::Name(name) => self.builtin_effect(name, call),
            Target::Local(_) | Target::Unknown => {
                self.hand_over(call);
                Value::Unknown
            }
        }
    }

    fn instance(&mut self, index: usize, range: TextRange) -> Value<'a> {
        let class = &self.facts.classes[index];
        let name = class.node.name.as_str();
        let kind = match class {
            class if class.has_foreign_base => return Value::Unknown,
            class if class.is_model && class.is_criterion => Kind::Criterion,
            class if class.is_model => Kind::Model,
            class if class.is_dataset => Kind::Dataset,
            _ => return Value::Unknown,
        };
        // A class that deals with devices itself may put its parts anywhere.
        let device = if class.touches_devices { Device::Unknown } else { self.default_device() };
        let id =
            self.make(kind, range, name, State { dtype: TorchDtype::F32, ..State::on(device) });
        self.facts.objects[id as usize].class = Some(index);
        Value::Object(id)
    }

    /// Where a tensor is made when no device is given.
    pub(super) fn default_device(&self) -> Device {
        let context = &self.facts;
        let changed = context.mentions.default_device
            || context.any_context(self.context, |kind| {
                matches!(kind, super::context::ContextKind::With(With::DefaultDevice | With::Other))
            });
        if changed { Device::Unknown } else { Device::CPU }
    }

    fn escape_arguments(&mut self, call: &Call<'a>) {
        for snap in call.args.iter().chain(call.keywords.iter().map(|(_, snap)| snap)) {
            self.escape(&snap.value);
        }
    }

    /// Arguments go to code that can't be seen: it may fill storage and move models.
    pub(super) fn hand_over(&mut self, call: &Call<'a>) {
        self.escape_arguments(call);
        for snap in call.args.iter().chain(call.keywords.iter().map(|(_, snap)| snap)) {
            if let Value::Object(id) = snap.value
                && self.facts.objects[id as usize].kind == Kind::Model
            {
                let state = self.state_of(id);
                self.flow.states.insert(id, State { device: Device::Unknown, ..state });
            }
        }
    }

    fn builtin_effect(&mut self, name: &str, call: &Call<'a>) -> Value<'a> {
        let first = call.args.first().map(|snap| snap.value.clone());
        match (name, first) {
            ("enumerate", Some(value)) => {
                let element = self.element_of(&value, call.node.range());
                Value::Yields(Box::new(Value::Sequence(vec![Value::Unknown, element])))
            }
            ("iter" | "reversed" | "sorted", Some(value)) => {
                Value::Yields(Box::new(self.element_of(&value, call.node.range())))
            }
            ("next", Some(Value::Yields(element))) => *element,
            ("zip", Some(_)) => {
                let parts = call.args.iter().zip(&call.node.arguments.args);
                let parts =
                    parts.map(|(snap, node)| self.element_of(&snap.value, node.range())).collect();
                Value::Yields(Box::new(Value::Sequence(parts)))
            }
            ("list" | "tuple" | "set", Some(value @ Value::Parameters(_))) => value,
            ("filter", _) => match call.args.get(1).map(|snap| snap.value.clone()) {
                Some(value @ Value::Parameters(_)) => value,
                _ => Value::Unknown,
            },
            (
                "print" | "len" | "isinstance" | "type" | "id" | "repr" | "str" | "float" | "int"
                | "hasattr" | "getattr" | "sum" | "range" | "super",
                _,
            ) => Value::Unknown,
            _ => {
                self.hand_over(call);
                Value::Unknown
            }
        }
    }

    fn path_effect(&mut self, path: &str, call: &Call<'a>) -> Value<'a> {
        let range = call.node.range();
        let api = api::lookup(path);
        if api != Api::Function && !matches!(api, Api::MakeLike { .. }) {
            self.escape_arguments(call);
        }
        match api {
            Api::Make { filled } => {
                let state = self.made(call, filled);
                self.sized(call, path, state)
            }
            Api::MakeLike { filled } => {
                let like = call.args.first().map_or(State::UNKNOWN, |snap| snap.state);
                let device = self.device_argument(call).unwrap_or(like.device);
                let dtype = dtype_argument(call).unwrap_or(like.dtype);
                self.tensor(
                    range,
                    path,
                    State { device, dtype, filled, graph: false, dims: like.dims },
                )
            }
            Api::FromData => self.copied(path, call),
            Api::FromNumpy => {
                let double = matches!(
                    call.args.first().map(|snap| &snap.value),
                    Some(Value::Array { double: true })
                );
                let dtype = if double { TorchDtype::F64 } else { TorchDtype::Unknown };
                self.tensor(
                    range,
                    path,
                    State { dtype, dims: Dims::Some, ..State::on(Device::CPU) },
                )
            }
            Api::OldConstructor => self.old_constructor(path, call),
            Api::Device => self.device_call(call),
            Api::Module | Api::Criterion => {
                let kind = if api == Api::Module { Kind::Model } else { Kind::Criterion };
                let open = call.is_open() || call.keyword("device_map").is_some();
                let device = match self.device_argument(call) {
                    Some(device) => device,
                    None if open => Device::Unknown,
                    None => self.default_device(),
                };
                let dtype = dtype_argument(call).unwrap_or(TorchDtype::F32);
                Value::Object(self.make(kind, range, path, State { dtype, ..State::on(device) }))
            }
            Api::Optimizer => {
                let id = self.make(Kind::Optimizer, range, path, State::UNKNOWN);
                let given = call.argument(0, "params").map(|snap| &snap.value);
                self.facts.objects[id as usize].model = given.and_then(parameters_in);
                Value::Object(id)
            }
            Api::Scheduler => {
                Value::Object(self.make(Kind::Scheduler, range, path, State::UNKNOWN))
            }
            Api::Scaler => Value::Object(self.make(Kind::Scaler, range, path, State::UNKNOWN)),
            Api::Loader => {
                let device = self.batch_device(call);
                Value::Object(self.make(Kind::Loader, range, path, State::on(device)))
            }
            Api::Dataset => {
                let device = match path {
                    "torch.utils.data.TensorDataset" => common_device(&call.args),
                    "torch.utils.data.Subset" | "torch.utils.data.ConcatDataset" => {
                        call.args.first().map_or(Device::Unknown, |snap| snap.state.device)
                    }
                    path if path.starts_with("torchvision.datasets.") => Device::CPU,
                    _ => Device::Unknown,
                };
                Value::Object(self.make(Kind::Dataset, range, path, State::on(device)))
            }
            Api::Wrapper => match call.args.first().map(|snap| snap.value.clone()) {
                Some(value @ (Value::Object(_) | Value::Function(_))) => value,
                _ => Value::Unknown,
            },
            // These bring their inputs to the right device themselves.
            Api::Parallel => {
                Value::Object(self.make(Kind::Model, range, path, State::on(Device::Unknown)))
            }
            Api::Progress => call.args.first().map_or(Value::Unknown, |snap| snap.value.clone()),
            Api::Function => self.combine_arguments(path, call),
            Api::Float64Array => Value::Array { double: call.keyword("dtype").is_none() },
            Api::Array => Value::Unknown,
            Api::Unknown => self.other_path(path, call),
        }
    }

    fn other_path(&mut self, path: &str, call: &Call<'a>) -> Value<'a> {
        match path {
            "time.time"
            | "time.perf_counter"
            | "time.monotonic"
            | "time.perf_counter_ns"
            | "time.time_ns"
            | "timeit.default_timer" => Value::Clock(call.node.range().start()),
            "torch.cuda.current_device" => Value::Device(self.fresh_device(Places::CUDA)),
            "torch.accelerator.current_accelerator" => {
                let can = Places::CUDA.with(Places::MPS).with(Places::OTHER);
                Value::Device(self.fresh_device(can))
            }
            "torch.save" | "copy.deepcopy" => {
                match call.args.first().map(|snap| snap.value.clone()) {
                    Some(Value::Object(id)) if path == "copy.deepcopy" => {
                        let (kind, class) = {
                            let object = &self.facts.objects[id as usize];
                            (object.kind, object.class)
                        };
                        let copy = self.make(kind, call.node.range(), path, self.state_of(id));
                        self.facts.objects[copy as usize].class = class;
                        Value::Object(copy)
                    }
                    _ => Value::Unknown,
                }
            }
            path if path.starts_with("torch.") => Value::Unknown,
            _ => {
                self.hand_over(call);
                Value::Unknown
            }
        }
    }

    pub(super) fn combine_arguments(&mut self, path: &str, call: &Call<'a>) -> Value<'a> {
        let mut operands = Vec::new();
        for snap in call.args.iter().chain(call.keywords.iter().map(|(_, snap)| snap)) {
            match &snap.value {
                Value::Sequence(parts) => {
                    operands.extend(parts.iter().map(|part| self.snap(part.clone())));
                }
                _ => operands.push(snap.clone()),
            }
        }
        self.combine(&operands, call.node.range(), path)
    }

    fn object_effect(&mut self, call: &Call<'a>) -> Value<'a> {
        self.escape_arguments(call);
        let Value::Object(id) = call.receiver.value else { return Value::Unknown };
        let range = call.node.range();
        match self.facts.objects[id as usize].kind {
            Kind::Model => {
                let graph = !self.facts.gradients_off(self.context);
                let state = State { graph, ..State::on(call.receiver.state.device) };
                self.tensor(range, "a model's output", state)
            }
            Kind::Criterion => self.combine_arguments("a loss", call),
            _ => Value::Unknown,
        }
    }

    /// What a `with` item does to the code inside.
    pub(super) fn with_effect(&self, expr: &'a Expr, value: &Value<'a>) -> With {
        if let Value::Device(_) = value {
            return With::DefaultDevice;
        }
        let text = &self.facts.source[expr.range()];
        let Expr::Call(node) = expr else {
            return if text.contains("no_grad") { With::NoGrad } else { With::Other };
        };
        let events = &self.facts.functions[self.function].events;
        let call = events
            .iter()
            .rev()
            .find_map(|event| event.call().filter(|call| std::ptr::eq(call.node, node)));
        let Some(call) = call else { return With::Other };
        match call.path().unwrap_or_default() {
            "torch.no_grad" | "torch.inference_mode" => With::NoGrad,
            "torch.set_grad_enabled" => match call.args.first().map(|snap| &snap.value) {
                Some(Value::Bool(false)) => With::NoGrad,
                _ => With::GradByValue,
            },
            "torch.autocast" => {
                let device = call
                    .argument(0, "device_type")
                    .and_then(|snap| snap.value.as_device())
                    .unwrap_or(Device::Unknown);
                With::Autocast { device, dtype: autocast_dtype(call, device) }
            }
            "torch.cuda.amp.autocast" => {
                let device = Device::Literal { place: Places::CUDA, index: None };
                With::Autocast { device, dtype: autocast_dtype(call, device) }
            }
            "torch.device" => With::DefaultDevice,
            path if path.starts_with("torch.") => {
                // Profilers, streams, hooks: they leave devices and gradients alone.
                With::Other
            }
            _ if text.contains("grad") || text.contains("inference") => With::GradByValue,
            _ => With::Other,
        }
    }
}

/// The dtype of an autocast block.
fn autocast_dtype(call: &Call<'_>, device: Device) -> TorchDtype {
    match call.argument(1, "dtype").map(|snap| &snap.value) {
        Some(Value::Dtype(dtype)) => *dtype,
        // The defaults of torch.
        None if device.visibly_can_be(Places::CUDA) => TorchDtype::F16,
        None if device.is(Places::CPU) => TorchDtype::Bf16,
        _ => TorchDtype::Unknown,
    }
}

/// The model whose parameters are somewhere in a value.
fn parameters_in(value: &Value<'_>) -> Option<ObjectId> {
    match value {
        Value::Parameters(id) => Some(*id),
        Value::Sequence(parts) => parts.iter().find_map(parameters_in),
        _ => None,
    }
}
