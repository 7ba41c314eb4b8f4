//! SF028: a large temporary is made where the old values could be overwritten.

use ruff_python_ast::{Expr, Operator};
use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::event::{Event, EventKind};
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF028",
    name: "needless-temporary",
    severity: Severity::Hint,
    summary: "a new tensor is made in a loop where an in-place operation would serve",
    fixable: false,
    page: include_str!("pages/SF028.md"),
    check,
};

/// From here on a tensor counts as large whatever it is for.
const LARGE: u64 = 1 << 20;

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        for event in &function.events {
            let EventKind::Assign { place, target, node, .. } = &event.kind else { continue };
            if overwritten(facts, node) != Some(*place) {
                continue;
            }
            let stored = match target {
                Expr::Attribute(attribute) => {
                    node.is_bin_op_expr() && matches!(attribute.attr.as_str(), "data" | "grad")
                }
                _ => false,
            };
            if stored || is_large_buffer(facts, function, event, place) {
                let range = TextRange::new(target.start(), node.end());
                findings.add(
                    &RULE,
                    range,
                    format!("`{place}` is computed into new memory and the old is thrown away"),
                    "update it in place: `+=`, `*=`, `.add_()`, `.mul_()`, `.lerp_()`, `.relu_()`",
                );
            }
        }
    }
}

/// The name whose old values go into an expression that has an in-place twin.
fn overwritten<'a>(facts: &Facts<'a>, node: &'a Expr) -> Option<&'a str> {
    match node {
        Expr::BinOp(sum) if is_arithmetic(sum.op) => Some(facts.text(leftmost(sum).range())),
        Expr::Call(call) => {
            let Expr::Attribute(func) = &*call.func else { return None };
            let twin = matches!(
                func.attr.as_str(),
                "relu"
                    | "sigmoid"
                    | "tanh"
                    | "exp"
                    | "sqrt"
                    | "abs"
                    | "clamp"
                    | "neg"
                    | "add"
                    | "sub"
                    | "mul"
                    | "div"
            );
            let first = match &*func.value {
                Expr::Name(module) if matches!(module.id.as_str(), "torch" | "F") => {
                    call.arguments.args.first()?.range()
                }
                value => value.range(),
            };
            twin.then(|| facts.text(first))
        }
        _ => None,
    }
}

fn is_arithmetic(op: Operator) -> bool {
    matches!(op, Operator::Add | Operator::Sub | Operator::Mult | Operator::Div)
}

/// The first operand of `a * b + c`.
fn leftmost(binary: &ruff_python_ast::ExprBinOp) -> &Expr {
    let mut expr = &*binary.left;
    while let Expr::BinOp(inner) = expr {
        expr = &inner.left;
    }
    expr
}

/// A large tensor, or one made before a loop without gradients, that nothing else refers to.
fn is_large_buffer<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    event: &Event<'a>,
    place: &str,
) -> bool {
    let born = function.events.iter().rev().find_map(|other| match &other.kind {
        EventKind::Assign { place: to, value, .. }
            if *to == place && other.range.end() <= event.range.start() =>
        {
            Some((facts.object(value), other.range))
        }
        _ => None,
    });
    let Some((Some(object), bound)) = born else { return false };
    let large = object.elements.is_some_and(|elements| elements >= LARGE);
    let looped = facts.loop_around(event.context).is_some_and(|around| {
        !around.range.contains_range(bound) && facts.gradients_off(event.context)
    });
    let aliased = || {
        function.events.iter().any(|other| match &other.kind {
            EventKind::Assign { node, place: to, .. } => {
                *to != place && facts.text(node.range()) == place
            }
            EventKind::Call(call) => {
                call.method() == Some("append")
                    && call.node.arguments.args.iter().any(|arg| facts.text(arg.range()) == place)
                    || call.keyword("requires_grad").is_some()
            }
            _ => false,
        })
    };
    let own = object.maker.as_str().starts_with("torch.")
        && !matches!(object.maker.as_str(), "torch.from_numpy" | "torch.as_tensor");
    own && object.elements != Some(1) && (large || looped) && !aliased()
}
