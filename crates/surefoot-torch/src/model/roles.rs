//! What names that come from elsewhere stand for, told from annotations and from what the scope
//! does with them: something with `.parameters()` or `.eval()` is a model, something with
//! `.zero_grad()` and `.step()` is an optimizer. Names alone decide only for `device`, and for a
//! `model` or `net` that is called.

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{Expr, Stmt, StmtFunctionDef};
use ruff_text_size::{Ranged, TextRange};
use rustc_hash::FxHashMap;

use super::device::{Device, Places};
use super::value::{Kind, State, Value};
use super::walk::Walker;

const MODEL: u8 = 1;
const ZERO_GRAD: u8 = 2;
const STEP: u8 = 4;

/// What a scope does with its names.
#[derive(Debug, Default)]
pub(super) struct Roles<'a> {
    by_name: FxHashMap<&'a str, u8>,
}

impl<'a> Roles<'a> {
    /// Reads the statements of one scope, leaving out the functions and classes in it.
    pub(super) fn of(source: &'a str, body: &'a [Stmt]) -> Self {
        let mut reader = Reader { source, roles: Self::default() };
        for stmt in body {
            reader.visit_stmt(stmt);
        }
        reader.roles
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        let bits = self.by_name.get(name).copied().unwrap_or(0);
        if bits & (ZERO_GRAD | STEP) == ZERO_GRAD | STEP {
            Some(Kind::Optimizer)
        } else if bits & MODEL != 0 && bits & STEP == 0 {
            Some(Kind::Model)
        } else {
            None
        }
    }
}

struct Reader<'a> {
    source: &'a str,
    roles: Roles<'a>,
}

impl<'a> Reader<'a> {
    /// A name, or an attribute of `self`.
    fn name(&self, expr: &'a Expr) -> Option<&'a str> {
        match expr {
            Expr::Name(name) => Some(name.id.as_str()),
            Expr::Attribute(attribute) => {
                let text = &self.source[attribute.range];
                let of_self =
                    matches!(&*attribute.value, Expr::Name(name) if name.id.as_str() == "self");
                (of_self && text.strip_prefix("self.") == Some(attribute.attr.as_str()))
                    .then_some(text)
            }
            _ => None,
        }
    }

    fn add(&mut self, name: &'a str, bits: u8) {
        *self.roles.by_name.entry(name).or_default() |= bits;
    }
}

impl<'a> Visitor<'a> for Reader<'a> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if !matches!(stmt, Stmt::FunctionDef(_) | Stmt::ClassDef(_)) {
            walk_stmt(self, stmt);
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr {
            if let Expr::Attribute(attribute) = &*call.func
                && let Some(name) = self.name(&attribute.value)
            {
                let bits = match attribute.attr.as_str() {
                    "eval" if call.arguments.is_empty() => MODEL,
                    "train" if call.arguments.len() <= 1 => MODEL,
                    "parameters" | "named_parameters" => MODEL,
                    "zero_grad" => ZERO_GRAD,
                    "step" => STEP,
                    _ => 0,
                };
                if bits != 0 {
                    self.add(name, bits);
                }
            }
            if let Some(name) = self.name(&call.func)
                && matches!(name.trim_start_matches("self."), "model" | "net" | "network")
            {
                self.add(name, MODEL);
            }
        }
        walk_expr(self, expr);
    }
}

impl<'a> Walker<'a> {
    /// Binds the parameters of the function about to be walked.
    pub(super) fn bind_parameters(&mut self, node: &'a StmtFunctionDef) {
        for parameter in &*node.parameters {
            let name = parameter.name().as_str();
            let annotated =
                parameter.annotation().and_then(|annotation| self.annotated(annotation));
            let value = match annotated {
                Some(value) => value,
                None => match self.roles.kind(name) {
                    Some(kind) => self.foreign(kind, parameter.range()),
                    None if name == "device" => Value::Device(self.fresh_device(Places::ANY)),
                    None => Value::Unknown,
                },
            };
            self.flow.names.insert(name, value);
        }
    }

    /// Binds what the scope uses as a model or an optimizer and no one has said anything about.
    pub(super) fn bind_free_names(&mut self, range: TextRange) {
        let names: Vec<&'a str> = self.roles.by_name.keys().copied().collect();
        for name in names {
            let unknown = self.flow.get(name).is_none_or(|value| *value == Value::Unknown);
            if unknown && let Some(kind) = self.roles.kind(name) {
                let value = self.foreign(kind, TextRange::empty(range.start()));
                self.flow.remember(name, value);
            }
        }
    }

    /// What a name that is given an unknown value stands for, by its role in this scope.
    pub(super) fn by_role(&mut self, name: &str, node: &'a Expr) -> Value<'a> {
        let Some(kind) = self.roles.kind(name) else { return Value::Unknown };
        let maker = match node {
            Expr::Call(call) if self.place(&call.func).is_some() => {
                &self.facts.source[call.func.range()]
            }
            _ => return self.foreign(kind, node.range()),
        };
        Value::Object(self.make(kind, node.range(), maker, State::on(Device::Unknown)))
    }

    fn foreign(&mut self, kind: Kind, range: TextRange) -> Value<'a> {
        let id = self.make(kind, range, "elsewhere", State::on(Device::Unknown));
        self.facts.objects[id as usize].seen_made = false;
        Value::Object(id)
    }

    /// What an annotation says; `Optional[…]` and unions say nothing.
    fn annotated(&mut self, annotation: &'a Expr) -> Option<Value<'a>> {
        if !matches!(annotation, Expr::Name(_) | Expr::Attribute(_)) {
            return None;
        }
        let Value::Path(path) = self.eval(annotation) else { return None };
        let kind = match &*path {
            "torch.Tensor" => Kind::Tensor,
            "torch.nn.Module" => Kind::Model,
            "torch.utils.data.DataLoader" => Kind::Loader,
            "torch.optim.Optimizer" | "torch.optim.optimizer.Optimizer" => Kind::Optimizer,
            "torch.device" => return Some(Value::Device(self.fresh_device(Places::ANY))),
            _ => return None,
        };
        Some(self.foreign(kind, annotation.range()))
    }
}
