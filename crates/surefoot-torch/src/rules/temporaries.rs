//! SF028: a large temporary is made where the old values could be overwritten.

use ruff_python_ast::{Expr, Operator};
use ruff_text_size::{Ranged, TextRange};

use super::{Findings, Rule};
use crate::finding::Severity;
use crate::model::event::EventKind;
use crate::model::{Facts, Function};

pub(super) static RULE: Rule = Rule {
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
            let EventKind::Assign { place, target, node: Expr::BinOp(sum), .. } = &event.kind
            else {
                continue;
            };
            if !is_arithmetic(sum.op) || facts.text(leftmost(sum).range()) != *place {
                continue;
            }
            let stored = match target {
                Expr::Attribute(attribute) => matches!(attribute.attr.as_str(), "data" | "grad"),
                _ => false,
            };
            if stored || is_large_buffer(facts, function, event.context, place, event.range) {
                let range = TextRange::new(target.start(), sum.end());
                findings.add(
                    &RULE,
                    range,
                    format!("`{place}` is computed into new memory and the old is thrown away"),
                    "update it in place: `+=`, `*=`, `.add_()`, `.mul_()`, `.lerp_()`",
                );
            }
        }
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

/// A tensor made before the loop, that nothing else refers to, updated without gradients.
fn is_large_buffer(
    facts: &Facts<'_>,
    function: &Function<'_>,
    context: u32,
    place: &str,
    at: TextRange,
) -> bool {
    let Some(around) = facts.loop_around(context) else { return false };
    let born = function.events.iter().rev().find_map(|event| match &event.kind {
        EventKind::Assign { place: to, value, .. }
            if *to == place && event.range.end() <= at.start() =>
        {
            Some((facts.object(value), event.range))
        }
        _ => None,
    });
    let Some((Some(object), bound)) = born else { return false };
    let made_before = !around.range.contains_range(bound) && object.maker.starts_with("torch.");
    let large = object.elements.is_some_and(|elements| elements >= LARGE);
    let without_gradients = facts.gradients_off(context);
    let aliased = function.events.iter().any(|event| match &event.kind {
        EventKind::Assign { node, place: to, .. } => {
            *to != place && facts.text(node.range()) == place
        }
        EventKind::Call(call) => {
            call.method() == Some("append")
                && call.node.arguments.args.iter().any(|arg| facts.text(arg.range()) == place)
        }
        _ => false,
    });
    made_before && object.elements != Some(1) && (large || without_gradients) && !aliased
}
