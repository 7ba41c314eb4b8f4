//! Assignments: what a name, an attribute or a part of a tensor is bound to.

use ruff_python_ast::{Expr, StmtAugAssign};
use ruff_text_size::Ranged;

use super::device::{Device, Places};
use super::eval::is_device_name;
use super::event::EventKind;
use super::value::{Dims, Kind, Maker, State, Value};
use super::walk::Walker;

impl<'a> Walker<'a> {
    /// Binds a target to a value.
    pub(super) fn assign(&mut self, target: &'a Expr, node: &'a Expr, value: Value<'a>) {
        match target {
            Expr::Name(_) | Expr::Attribute(_) => self.assign_place(target, node, value),
            Expr::Tuple(tuple) => self.unpack(&tuple.elts, node, value),
            Expr::List(list) => self.unpack(&list.elts, node, value),
            Expr::Starred(starred) => self.assign(&starred.value, node, Value::Unknown),
            Expr::Subscript(subscript) => {
                let into = self.eval(&subscript.value);
                self.eval(&subscript.slice);
                self.escape(&into);
                self.escape(&value);
                let place = &self.facts.source[subscript.range];
                let value = self.snap(value);
                self.record(target.range(), EventKind::Assign { place, target, node, value });
            }
            _ => {}
        }
    }

    fn assign_place(&mut self, target: &'a Expr, node: &'a Expr, value: Value<'a>) {
        let Some(place) = self.place(target) else { return };
        let last = place.rsplit('.').next().unwrap_or(place);
        let value = match value {
            Value::Unknown if is_device_name(last) => Value::Device(self.fresh_device(Places::ANY)),
            Value::Unknown => self.by_role(place, node),
            value => value,
        };
        if let Value::Object(id) = value {
            self.facts.objects[id as usize].name.get_or_insert(place);
        }
        if let Expr::Attribute(attribute) = target {
            self.escape(&value);
            if let Value::Object(owner) = self.eval(&attribute.value) {
                self.escape(&Value::Object(owner));
            }
        }
        let snap = self.snap(value.clone());
        self.record(target.range(), EventKind::Assign { place, target, node, value: snap });
        self.flow.bind(place, value);
    }

    fn unpack(&mut self, targets: &'a [Expr], node: &'a Expr, value: Value<'a>) {
        let value = match (value, node) {
            (Value::Unknown, Expr::Name(name)) if name.id.as_str() == "batch" => {
                Value::Batch(Device::Unknown)
            }
            (value, _) => value,
        };
        let written = match node {
            Expr::Tuple(tuple) if tuple.elts.len() == targets.len() => Some(&tuple.elts),
            _ => None,
        };
        for (i, target) in targets.iter().enumerate() {
            let part = match &value {
                Value::Sequence(parts) if parts.len() == targets.len() => parts[i].clone(),
                Value::Batch(device) => match target {
                    Expr::Tuple(_) | Expr::List(_) => Value::Batch(*device),
                    _ => self.tensor(target.range(), Maker::Batch, State::on(*device)),
                },
                Value::Object(id) if self.facts.objects[*id as usize].kind == Kind::Tensor => {
                    let state = self.state_of(*id);
                    self.tensor(target.range(), "an output", State { dims: Dims::Unknown, ..state })
                }
                _ => Value::Unknown,
            };
            let node = written.map_or(node, |elts| &elts[i]);
            self.assign(target, node, part);
        }
    }

    pub(super) fn augment(&mut self, stmt: &'a StmtAugAssign) {
        let value = self.eval(&stmt.value);
        let old = self.eval(&stmt.target);
        if let (Some(place), Expr::Name(_) | Expr::Attribute(_)) =
            (self.place(&stmt.target), &*stmt.target)
        {
            let (value, target) = (self.snap(value), self.snap(old.clone()));
            let kind = EventKind::Augment { place, op: stmt.op, node: &stmt.value, value, target };
            self.record(stmt.range, kind);
            match old {
                // In place: the same tensor.
                Value::Object(_) => self.escape(&old),
                _ => self.flow.bind(place, Value::Unknown),
            }
        } else if let Expr::Subscript(subscript) = &*stmt.target {
            let into = self.eval(&subscript.value);
            self.escape(&into);
            let place = &self.facts.source[subscript.range];
            let (value, target) = (self.snap(value), self.snap(old));
            let kind = EventKind::Augment { place, op: stmt.op, node: &stmt.value, value, target };
            self.record(stmt.range, kind);
        }
    }
}
