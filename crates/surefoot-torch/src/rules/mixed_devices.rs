//! SF003: tensors on different devices meet in one operation.

use ruff_text_size::TextRange;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::Facts;
use crate::model::api;
use crate::model::device::{Apart, Device, Places};
use crate::model::event::{Call, EventKind, Snap, Target};
use crate::model::value::{Dims, Kind, Maker, Value};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF003",
    name: "mixed-devices",
    severity: Severity::Error,
    summary: "an operation combines tensors on different devices",
    fixable: false,
    page: include_str!("pages/SF003.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if facts.mentions.framework {
        return;
    }
    for function in &facts.functions {
        for event in &function.events {
            let found = match &event.kind {
                EventKind::Binary { left, right, .. } => apart(facts, left, right),
                EventKind::Augment { value, target, .. } => apart(facts, target, value),
                EventKind::Call(call) => operands(facts, call),
                EventKind::Assign { .. } => None,
            };
            let Some((a, b)) = found else { continue };
            if facts.is_in_branch_on(event, &["cuda", "gpu", "mps"]) {
                continue;
            }
            let range: TextRange = event.range;
            findings.add(
                &RULE,
                range,
                format!("one tensor is on {}, the other on {}", a.describe(), b.describe()),
                "make or move both on the same device: `torch.zeros(n, device=x.device)`, `y = y.to(x.device)`",
            );
        }
    }
}

/// The first two operands of a call that are apart.
fn operands<'a>(facts: &Facts<'a>, call: &Call<'a>) -> Option<(Device, Device)> {
    let mixes = match &call.target {
        Target::Path(path) => api::mixes(path),
        Target::Object => facts.kind(&call.receiver) == Some(Kind::Criterion),
        Target::Method { name, .. } => {
            let name: &str = name;
            matches!(name, "matmul" | "mm" | "bmm" | "add" | "sub" | "mul" | "div" | "dot")
                && facts.is_tensor(&call.receiver)
        }
        _ => false,
    };
    if !mixes {
        return None;
    }
    let mut tensors: Vec<&Snap<'a>> = Vec::new();
    if facts.is_tensor(&call.receiver) {
        tensors.push(&call.receiver);
    }
    tensors.extend(call.args.iter().filter(|snap| facts.is_tensor(snap)));
    let listed = call.args.iter().filter_map(|snap| match &snap.value {
        Value::Sequence(parts) => Some(parts),
        _ => None,
    });
    let listed: Vec<Snap<'a>> = listed
        .flatten()
        .filter_map(|part| {
            let object = facts.objects.get(part.object()? as usize)?;
            Some(Snap { value: part.clone(), state: object.born })
        })
        .filter(|snap| facts.is_tensor(snap))
        .collect();
    tensors.extend(&listed);
    let first = tensors.first()?;
    tensors[1..].iter().find_map(|other| apart(facts, first, other))
}

fn apart<'a>(facts: &Facts<'a>, left: &Snap<'a>, right: &Snap<'a>) -> Option<(Device, Device)> {
    if !facts.is_tensor(left) || !facts.is_tensor(right) {
        return None;
    }
    let (a, b) = (left.state.device, right.state.device);
    if a.apart(b) == Apart::No || a.can().has(Places::META) && a.can() != Places::ANY {
        return None;
    }
    // A number in a tensor may stay on the CPU.
    let sized = |snap: &Snap<'a>| {
        !snap.state.device.is(Places::CPU)
            || snap.state.dims == Dims::Some
            || facts.object(snap).is_some_and(|object| object.maker == Maker::Batch)
    };
    (sized(left)
        && sized(right)
        && left.state.dims != Dims::Scalar
        && right.state.dims != Dims::Scalar)
        .then_some((a, b))
}
