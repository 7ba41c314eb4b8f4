//! SF027: device work is timed without waiting for it.

use ruff_python_ast::Operator;
use ruff_text_size::TextSize;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::api;
use crate::model::context::{Context, ContextKind};
use crate::model::device::{Device, Places};
use crate::model::event::{Call, Event, EventKind, Snap, Target};
use crate::model::value::Value;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF027",
    name: "unsynchronised-timing",
    severity: Severity::Warning,
    summary: "the clock is read while the device is still working",
    fixable: false,
    page: include_str!("pages/SF027.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        for event in &function.events {
            let EventKind::Binary { node, left, right } = &event.kind else { continue };
            let (Operator::Sub, Value::Clock(stop), Value::Clock(start)) =
                (node.op, &left.value, &right.value)
            else {
                continue;
            };
            if stop > start && is_open(facts, function, *start, *stop) {
                findings.add(
                    &RULE,
                    event.range,
                    "the device may still be working when the clock is read: this times the launch".to_owned(),
                    "call `torch.cuda.synchronize()` (or `torch.accelerator.synchronize()`) before each reading, or use events",
                );
            }
        }
    }
}

/// Whether device work was started between the readings and nothing waited for it.
fn is_open(facts: &Facts<'_>, function: &Function<'_>, start: TextSize, stop: TextSize) -> bool {
    let mut working = false;
    for event in &function.events {
        if event.range.start() <= start || event.range.end() > stop {
            continue;
        }
        let Some(call) = event.call() else {
            if let EventKind::Binary { left, right, .. } = &event.kind {
                working |= on_device(facts, left) || on_device(facts, right);
            }
            continue;
        };
        if waits(facts, call) {
            working = false;
        } else if works(facts, call) && !is_coarse(facts, event, start) {
            working = true;
        }
    }
    working
}

/// Work in a loop within a loop: a whole run is timed, and a launch more or less is nothing.
fn is_coarse(facts: &Facts<'_>, event: &Event<'_>, start: TextSize) -> bool {
    let inside = |context: &&Context<'_>| {
        matches!(context.kind, ContextKind::Loop { .. }) && context.range.start() > start
    };
    facts.around(event.context).filter(inside).count() > 1
}

fn off_cpu(device: Device) -> bool {
    device.is_known() && device.can().off_cpu() && !device.is(Places::META)
}

fn on_device<'a>(facts: &Facts<'a>, snap: &Snap<'a>) -> bool {
    facts.is_tensor(snap) && off_cpu(snap.state.device)
}

fn works<'a>(facts: &Facts<'a>, call: &Call<'a>) -> bool {
    if facts.calls_model(call) {
        return off_cpu(call.receiver.state.device)
            || call.args.iter().any(|snap| on_device(facts, snap));
    }
    match &call.target {
        Target::Path(path) => {
            api::mixes(path) && call.args.iter().any(|snap| on_device(facts, snap))
        }
        Target::Method { name, .. } => *name == "backward" && on_device(facts, &call.receiver),
        _ => false,
    }
}

/// Whether the call waits for the device, or may: code that can't be seen has the benefit of
/// the doubt.
fn waits<'a>(facts: &Facts<'a>, call: &Call<'a>) -> bool {
    match &call.target {
        Target::Method { name, .. } => {
            let name: &str = name;
            matches!(
                name,
                "item"
                    | "cpu"
                    | "tolist"
                    | "numpy"
                    | "synchronize"
                    | "wait"
                    | "elapsed_time"
                    | "generate"
            )
        }
        Target::Path(path) => {
            path.ends_with("synchronize")
                || &**path == "torch.save"
                || !path.starts_with("torch.") && !path.starts_with("time.")
        }
        Target::Name(name) => {
            let shown = call.args.iter().any(|snap| facts.is_tensor(snap));
            match *name {
                "print" | "float" | "int" | "bool" | "str" => shown,
                "range" | "len" | "enumerate" | "zip" | "next" | "iter" | "isinstance" => false,
                _ => true,
            }
        }
        Target::Local(_) => true,
        Target::Object | Target::Class(_) | Target::Unknown => false,
    }
}
