//! The walk over expressions: what each is worth, recording the calls and operations inside.

use ruff_python_ast::{Comprehension, Expr, ExprAttribute, Number, UnaryOp};
use ruff_text_size::{Ranged, TextRange};

use super::api;
use super::context::ContextKind;
use super::device::{Device, Places};
use super::event::EventKind;
use super::value::{Kind, Maker, State, TorchDtype, Value};
use super::walk::Walker;

impl<'a> Walker<'a> {
    /// The text of a plain dotted name, such as `self.model`.
    pub(super) fn place(&self, expr: &'a Expr) -> Option<&'a str> {
        match expr {
            Expr::Name(name) => Some(name.id.as_str()),
            Expr::Attribute(attribute) => {
                self.place(&attribute.value)?;
                let text = &self.facts.source[attribute.range];
                let plain =
                    text.bytes().all(|b| !b.is_ascii_whitespace() && b != b'(' && b != b'#');
                plain.then_some(text)
            }
            _ => None,
        }
    }

    pub(super) fn eval(&mut self, expr: &'a Expr) -> Value<'a> {
        match expr {
            Expr::Name(name) => self.flow.get(name.id.as_str()).cloned().unwrap_or(Value::Unknown),
            Expr::Attribute(attribute) => self.attribute(expr, attribute),
            Expr::Call(call) => self.call(call, false),
            Expr::StringLiteral(text) => match text.as_single_part_string() {
                Some(part) => Value::Str(part.as_str()),
                None => Value::Unknown,
            },
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(int) => int.as_i64().map_or(Value::Unknown, Value::Int),
                _ => Value::Float,
            },
            Expr::BooleanLiteral(literal) => Value::Bool(literal.value),
            Expr::NoneLiteral(_) => Value::None,
            Expr::FString(fstring) => {
                for element in fstring.value.elements() {
                    if let Some(interpolation) = element.as_interpolation() {
                        self.eval(&interpolation.expression);
                    }
                }
                let text = &self.facts.source[fstring.range];
                let is_cuda = text.get(2..).is_some_and(|rest| rest.starts_with("cuda:"));
                if is_cuda {
                    Value::Device(self.fresh_device(Places::CUDA))
                } else {
                    Value::Unknown
                }
            }
            Expr::BinOp(binary) => {
                let left = self.eval(&binary.left);
                let right = self.eval(&binary.right);
                let (left, right) = (self.snap(left), self.snap(right));
                let result =
                    self.combine(&[left.clone(), right.clone()], binary.range, "an operation");
                self.record(binary.range, EventKind::Binary { node: binary, left, right });
                result
            }
            Expr::UnaryOp(unary) => {
                let value = self.eval(&unary.operand);
                match (unary.op, value) {
                    (UnaryOp::USub, Value::Int(n)) => Value::Int(n.saturating_neg()),
                    (UnaryOp::USub, value @ Value::Object(_)) => value,
                    _ => Value::Unknown,
                }
            }
            Expr::BoolOp(boolean) => {
                let mut values = boolean.values.iter();
                if let Some(first) = values.next() {
                    self.eval(first);
                    for value in values {
                        self.within(ContextKind::Branch(first), boolean.range, |walker| {
                            walker.eval(value);
                        });
                    }
                }
                Value::Unknown
            }
            Expr::If(conditional) => {
                self.eval(&conditional.test);
                let kind = ContextKind::Branch(&conditional.test);
                let (body, orelse) = self.within(kind, conditional.range, |walker| {
                    (walker.eval(&conditional.body), walker.eval(&conditional.orelse))
                });
                if body == orelse { body } else { self.join_devices(&body, &orelse) }
            }
            Expr::Compare(compare) => {
                let left = self.eval(&compare.left);
                let mut operands = vec![self.snap(left)];
                for value in &compare.comparators {
                    let value = self.eval(value);
                    operands.push(self.snap(value));
                }
                let result = self.combine(&operands, compare.range, "a comparison");
                if let Value::Object(id) = result {
                    let state =
                        State { graph: false, dtype: TorchDtype::Other, ..self.state_of(id) };
                    self.flow.states.insert(id, state);
                }
                result
            }
            Expr::Named(named) => {
                let value = self.eval(&named.value);
                self.assign(&named.target, &named.value, value.clone());
                value
            }
            Expr::Tuple(tuple) => self.sequence(&tuple.elts),
            Expr::List(list) => self.sequence(&list.elts),
            Expr::Set(set) => {
                self.sequence(&set.elts);
                Value::Unknown
            }
            Expr::Dict(dict) => {
                let mut parameters = Value::Unknown;
                for item in &dict.items {
                    if let Some(key) = &item.key {
                        self.eval(key);
                    }
                    let value = self.eval(&item.value);
                    self.escape(&value);
                    if let Value::Parameters(_) = value {
                        parameters = value;
                    }
                }
                parameters
            }
            Expr::ListComp(comp) => self.comprehension(&comp.generators, &[&comp.elt], comp.range),
            Expr::SetComp(comp) => self.comprehension(&comp.generators, &[&comp.elt], comp.range),
            Expr::Generator(comp) => self.comprehension(&comp.generators, &[&comp.elt], comp.range),
            Expr::DictComp(comp) => {
                let parts: Vec<&Expr> =
                    comp.key.as_deref().into_iter().chain([&*comp.value]).collect();
                self.comprehension(&comp.generators, &parts, comp.range)
            }
            Expr::Lambda(lambda) => {
                let names: Vec<&'a str> = lambda
                    .parameters
                    .iter()
                    .flat_map(|parameters| parameters.iter())
                    .map(|parameter| parameter.name().as_str())
                    .collect();
                self.shadowed(&names, |walker| {
                    walker.within(ContextKind::Comprehension, lambda.range, |walker| {
                        walker.eval(&lambda.body);
                    });
                });
                Value::Unknown
            }
            Expr::Subscript(subscript) => {
                let value = self.eval(&subscript.value);
                let index = self.eval(&subscript.slice);
                match (value, index) {
                    (Value::Sequence(parts), Value::Int(n)) => usize::try_from(n)
                        .ok()
                        .and_then(|n| parts.into_iter().nth(n))
                        .unwrap_or(Value::Unknown),
                    (Value::Batch(device), _) => {
                        self.tensor(subscript.range, Maker::Batch, State::on(device))
                    }
                    (Value::Object(id), _)
                        if self.facts.objects[id as usize].kind == Kind::Tensor =>
                    {
                        let state = self.state_of(id);
                        if state.filled {
                            let state = State { dims: super::value::Dims::Unknown, ..state };
                            self.tensor(subscript.range, "a part", state)
                        } else {
                            Value::Object(id)
                        }
                    }
                    _ => Value::Unknown,
                }
            }
            Expr::Await(value) => {
                self.eval(&value.value);
                Value::Unknown
            }
            Expr::Yield(value) => {
                if let Some(value) = &value.value {
                    let value = self.eval(value);
                    self.escape(&value);
                }
                Value::Unknown
            }
            Expr::YieldFrom(value) => {
                self.eval(&value.value);
                Value::Unknown
            }
            Expr::Starred(starred) => {
                self.eval(&starred.value);
                Value::Unknown
            }
            Expr::Slice(slice) => {
                for part in [&slice.lower, &slice.upper, &slice.step].into_iter().flatten() {
                    self.eval(part);
                }
                Value::Unknown
            }
            Expr::TString(_)
            | Expr::BytesLiteral(_)
            | Expr::EllipsisLiteral(_)
            | Expr::IpyEscapeCommand(_) => Value::Unknown,
        }
    }

    fn sequence(&mut self, elts: &'a [Expr]) -> Value<'a> {
        // A long table of constants is of no interest and would only cost time.
        const LONGEST: usize = 64;
        let mut values = Vec::with_capacity(elts.len().min(LONGEST));
        for elt in elts {
            let value = self.eval(elt);
            self.escape(&value);
            if values.len() < LONGEST {
                values.push(value);
            }
        }
        if elts.iter().any(Expr::is_starred_expr) {
            Value::Unknown
        } else {
            Value::Sequence(values)
        }
    }

    /// Evaluates something whose own names must not leak out.
    fn shadowed(&mut self, names: &[&'a str], inside: impl FnOnce(&mut Self)) {
        let before: Vec<_> =
            names.iter().map(|name| (*name, self.flow.names.remove(name))).collect();
        for name in names {
            self.flow.names.insert(name, Value::Unknown);
        }
        inside(self);
        for (name, value) in before {
            match value {
                Some(value) => self.flow.names.insert(name, value),
                None => self.flow.names.remove(name),
            };
        }
    }

    fn comprehension(
        &mut self,
        generators: &'a [Comprehension],
        parts: &[&'a Expr],
        range: TextRange,
    ) -> Value<'a> {
        let mut names = Vec::new();
        for generator in generators {
            target_names(&generator.target, &mut names);
        }
        let mut parameters = Value::Unknown;
        let first = generators.first().map(|generator| self.eval(&generator.iter));
        if let Some(Value::Parameters(id)) = first {
            parameters = Value::Parameters(id);
        }
        let mut first = first;
        self.shadowed(&names, |walker| {
            walker.within(ContextKind::Comprehension, range, |walker| {
                for generator in generators {
                    let iterated = first.take().unwrap_or_else(|| walker.eval(&generator.iter));
                    let element = walker.element_of(&iterated, generator.iter.range());
                    walker.assign(&generator.target, &generator.iter, element);
                    for test in &generator.ifs {
                        walker.eval(test);
                    }
                }
                for part in parts {
                    walker.eval(part);
                }
            });
        });
        parameters
    }

    fn attribute(&mut self, expr: &'a Expr, attribute: &'a ExprAttribute) -> Value<'a> {
        let place = self.place(expr);
        if let Some(place) = place
            && let Some(value) = self.flow.get(place)
            && *value != Value::Unknown
        {
            return value.clone();
        }
        let name = attribute.attr.as_str();
        match self.eval(&attribute.value) {
            Value::Path(path) => {
                let full = format!("{path}.{name}");
                let full = api::canonical(&full);
                match api::dtype(full) {
                    Some(dtype) => Value::Dtype(dtype),
                    None => Value::Path(full.into()),
                }
            }
            Value::Object(id) => self.object_attribute(id, name, attribute.range, place),
            Value::Device(device) if name == "type" => Value::DeviceType(device),
            Value::Unknown => self.device_by_name(name, place),
            _ => Value::Unknown,
        }
    }

    fn object_attribute(
        &mut self,
        id: u32,
        name: &'a str,
        range: TextRange,
        place: Option<&'a str>,
    ) -> Value<'a> {
        let state = self.state_of(id);
        match (self.facts.objects[id as usize].kind, name) {
            (Kind::Tensor, "data" | "T" | "mT" | "H" | "real") => Value::Object(id),
            (Kind::Tensor, "grad") => self.tensor(range, "a gradient", State::on(state.device)),
            (Kind::Tensor, "device") if state.device.is_known() => Value::Device(state.device),
            (Kind::Tensor, "dtype") if state.dtype != TorchDtype::Unknown => {
                Value::Dtype(state.dtype)
            }
            (Kind::Model, "module" | "_orig_mod") => Value::Object(id),
            (_, "device") => self.device_by_name(name, place),
            _ => Value::Unknown,
        }
    }

    /// `args.device` and its like are the same device each time they are read.
    fn device_by_name(&mut self, name: &str, place: Option<&'a str>) -> Value<'a> {
        match place {
            Some(place) if is_device_name(name) => {
                let value = Value::Device(self.fresh_device(Places::ANY));
                self.flow.remember(place, value.clone());
                value
            }
            _ => Value::Unknown,
        }
    }

    /// What iterating over a value yields.
    pub(super) fn element_of(&mut self, value: &Value<'a>, range: TextRange) -> Value<'a> {
        match value {
            Value::Object(id) if self.facts.objects[*id as usize].kind == Kind::Loader => {
                Value::Batch(self.state_of(*id).device)
            }
            Value::Object(id) if self.facts.objects[*id as usize].kind == Kind::Tensor => {
                let state = self.state_of(*id);
                self.tensor(range, "a part", State { dims: super::value::Dims::Unknown, ..state })
            }
            Value::Yields(element) => (**element).clone(),
            // A loader that came from elsewhere: batches, but from who knows where.
            Value::Unknown if self.facts.source[range].contains("loader") => {
                Value::Batch(Device::Unknown)
            }
            _ => Value::Unknown,
        }
    }

    pub(super) fn tensor(
        &mut self,
        made: TextRange,
        maker: impl Into<Maker>,
        state: State,
    ) -> Value<'a> {
        Value::Object(self.make(Kind::Tensor, made, maker, state))
    }

    /// Storage that is handed to code that can't be seen may be filled there.
    pub(super) fn escape(&mut self, value: &Value<'a>) {
        match value {
            Value::Object(id) => {
                let state = self.state_of(*id);
                if !state.filled {
                    self.flow.states.insert(*id, State { filled: true, ..state });
                }
            }
            Value::Sequence(parts) => parts.iter().for_each(|part| self.escape(part)),
            _ => {}
        }
    }

    /// The result of an operation on tensors: on their common device.
    pub(super) fn combine(
        &mut self,
        operands: &[super::event::Snap<'a>],
        range: TextRange,
        maker: &str,
    ) -> Value<'a> {
        let mut device: Option<Device> = None;
        let mut graph = false;
        let mut dtype = TorchDtype::Unknown;
        for operand in operands {
            let Value::Object(id) = operand.value else { continue };
            if self.facts.objects[id as usize].kind != Kind::Tensor {
                continue;
            }
            graph |= operand.state.graph;
            dtype = operand.state.dtype;
            device = Some(match device {
                None => operand.state.device,
                Some(before) if before == operand.state.device => before,
                Some(_) => Device::Unknown,
            });
        }
        match device {
            Some(device) => self.tensor(range, maker, State { graph, dtype, ..State::on(device) }),
            None => Value::Unknown,
        }
    }
}

/// Whether a name says that it holds a device.
pub(super) fn is_device_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("device")
        || name.len() > 7
            && name.is_ascii()
            && name[name.len() - 7..].eq_ignore_ascii_case("_device")
}

fn target_names<'a>(target: &'a Expr, names: &mut Vec<&'a str>) {
    match target {
        Expr::Name(name) => names.push(name.id.as_str()),
        Expr::Tuple(tuple) => tuple.elts.iter().for_each(|elt| target_names(elt, names)),
        Expr::List(list) => list.elts.iter().for_each(|elt| target_names(elt, names)),
        _ => {}
    }
}
