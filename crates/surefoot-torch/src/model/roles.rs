//! What a function's parameters are, told from their annotations and from what is done with them:
//! something with `.parameters()` is a model, something with `.zero_grad()` and `.step()` is an
//! optimizer. Names alone decide only for
//! `device`, and for a `model` or `net` that is called.

use ruff_python_ast::visitor::{Visitor, walk_expr};
use ruff_python_ast::{Expr, Stmt, StmtFunctionDef};
use ruff_text_size::Ranged;
use rustc_hash::FxHashMap;

use super::device::{Device, Places};
use super::value::{Kind, State, Value};
use super::walk::Walker;

const MODEL: u8 = 1;
const ZERO_GRAD: u8 = 2;
const STEP: u8 = 4;

struct Uses<'a> {
    by_name: FxHashMap<&'a str, u8>,
}

impl<'a> Visitor<'a> for Uses<'a> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if !matches!(stmt, Stmt::FunctionDef(_) | Stmt::ClassDef(_)) {
            ruff_python_ast::visitor::walk_stmt(self, stmt);
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr
            && let Expr::Attribute(attribute) = &*call.func
            && let Expr::Name(name) = &*attribute.value
        {
            let bits = match attribute.attr.as_str() {
                "eval" | "train" if call.arguments.args.len() <= 1 => MODEL,
                "parameters" | "named_parameters" | "load_state_dict" => MODEL,
                "zero_grad" => ZERO_GRAD,
                "step" => STEP,
                _ => 0,
            };
            if bits != 0 {
                *self.by_name.entry(name.id.as_str()).or_default() |= bits;
            }
        }
        if let Expr::Call(call) = expr
            && let Expr::Name(name) = &*call.func
            && matches!(name.id.as_str(), "model" | "net" | "network")
        {
            *self.by_name.entry(name.id.as_str()).or_default() |= MODEL;
        }
        walk_expr(self, expr);
    }
}

impl<'a> Walker<'a> {
    /// Binds the parameters of the function about to be walked.
    pub(super) fn bind_parameters(&mut self, node: &'a StmtFunctionDef) {
        let mut uses = Uses { by_name: FxHashMap::default() };
        for stmt in &node.body {
            uses.visit_stmt(stmt);
        }
        for parameter in &*node.parameters {
            let name = parameter.name().as_str();
            let annotated =
                parameter.annotation().map(|annotation| self.annotated_kind(annotation));
            let value = match annotated.flatten() {
                Some(Value::Unknown) | None => {
                    let bits = uses.by_name.get(name).copied().unwrap_or(0);
                    if bits & (ZERO_GRAD | STEP) == ZERO_GRAD | STEP {
                        self.parameter_object(Kind::Optimizer, parameter.range())
                    } else if bits & MODEL != 0 && bits & STEP == 0 {
                        self.parameter_object(Kind::Model, parameter.range())
                    } else if name == "device" {
                        Value::Device(self.fresh_device(Places::ANY))
                    } else {
                        Value::Unknown
                    }
                }
                Some(value) => value,
            };
            self.flow.names.insert(name, value);
        }
    }

    fn parameter_object(&mut self, kind: Kind, range: ruff_text_size::TextRange) -> Value<'a> {
        let id = self.make(kind, range, "a parameter", State::on(Device::Unknown));
        self.facts.objects[id as usize].seen_made = false;
        Value::Object(id)
    }

    /// The kind an annotation names; `Optional[…]` and unions say nothing.
    fn annotated_kind(&mut self, annotation: &'a Expr) -> Option<Value<'a>> {
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
        Some(self.parameter_object(kind, annotation.range()))
    }
}
