//! SF001: storage that was allocated but never written is moved or read.

use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::api::{self, Api};
use crate::model::context::ContextKind;
use crate::model::event::{Call, Event, EventKind, Snap, Target};
use crate::model::methods::{SHAPE_QUESTIONS, VIEWS};
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF001",
    name: "uninitialised-memory",
    severity: Severity::Error,
    summary: "memory from torch.empty or its like is moved or read before it is filled",
    fixable: false,
    page: include_str!("pages/SF001.md"),
    check,
};

/// Methods that neither read nor move the values.
const HARMLESS: [&str; 25] = [
    "pin_memory",
    "contiguous",
    "numpy",
    "register_hook",
    "retain_grad",
    "record_stream",
    "is_pinned",
    "is_shared",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_tensor",
    "__dlpack__",
    "masked_scatter",
    "masked_fill",
    "scatter",
    "index_copy",
    "index_put",
    "index_fill",
    "slice_scatter",
    "chunk",
    "split",
    "unbind",
    "tensor_split",
];

const MOVES: [&str; 9] =
    ["to", "cuda", "cpu", "double", "float", "half", "bfloat16", "type", "type_as"];

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for (index, function) in facts.functions.iter().enumerate() {
        for event in &function.events {
            match &event.kind {
                EventKind::Call(call) => check_call(facts, index, event, call, findings),
                EventKind::Binary { node, left, right } => {
                    for snap in [left, right] {
                        read(facts, index, event, snap, node.range, "read", findings);
                    }
                }
                EventKind::Augment { value, target, .. } => {
                    for snap in [value, target] {
                        read(facts, index, event, snap, event.range, "read", findings);
                    }
                }
                EventKind::Assign { .. } => {}
            }
        }
    }
}

fn check_call<'a>(
    facts: &Facts<'a>,
    function: usize,
    event: &Event<'a>,
    call: &Call<'a>,
    findings: &mut Findings,
) {
    if let Some(name) = call.method() {
        let harmless = (name.ends_with('_') && !name.ends_with("__"))
            || HARMLESS.contains(&name)
            || VIEWS.contains(&name)
            || SHAPE_QUESTIONS.contains(&name);
        if !harmless {
            let how = if MOVES.contains(&name) { "moved" } else { "read" };
            read(facts, function, event, &call.receiver, event.range, how, findings);
        }
    }
    let reads_arguments = match &call.target {
        Target::Path(path) => {
            // With beta=0 the first argument only gives the shape.
            api::lookup(path) == Api::Function
                && !path.ends_with('_')
                && call.keyword("beta").is_none()
        }
        Target::Object => true,
        _ => false,
    };
    if reads_arguments {
        for (snap, node) in call.args.iter().zip(&call.node.arguments.args) {
            read(facts, function, event, snap, node.range(), "read", findings);
        }
    }
}

/// Reports a use of unwritten storage, if that is what it is.
fn read<'a>(
    facts: &Facts<'a>,
    function: usize,
    event: &Event<'a>,
    snap: &Snap<'a>,
    at: TextRange,
    how: &str,
    findings: &mut Findings,
) {
    let Some(object) = facts.object(snap) else { return };
    if snap.state.filled || object.function != function || in_later_turn(facts, event, object.made)
    {
        return;
    }
    let function: &Function<'a> = &facts.functions[function];
    if function.name.contains("empty") {
        return;
    }
    let maker = object.maker.as_str();
    findings.add(
        &RULE,
        at,
        format!("memory from `{maker}` is {how} before anything is written to it"),
        "fill it first (`torch.zeros`, `.zero_()`, `.copy_(…)`), and make it on its device with `device=`",
    );
}

/// A use inside a branch of a loop that the memory was made outside of may come in a later turn,
/// when it has been filled.
fn in_later_turn(facts: &Facts<'_>, event: &Event<'_>, made: TextRange) -> bool {
    let mut branch = false;
    for context in facts.around(event.context) {
        match context.kind {
            ContextKind::Branch(_) => branch = true,
            ContextKind::Loop { .. } if branch && !context.range.contains_range(made) => {
                return true;
            }
            _ => {}
        }
    }
    false
}
