//! SF029: every training step waits for the device to hand over a number.

use ruff_python_ast::Expr;
use ruff_text_size::Ranged;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::device::Places;
use crate::model::event::{Call, Event};
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF029",
    name: "sync-in-training-loop",
    severity: Severity::Hint,
    summary: "`.item()`, `.cpu()` or the like in every training step makes the host wait",
    fixable: false,
    page: include_str!("pages/SF029.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.accelerator {
        return;
    }
    for function in &facts.functions {
        let trained = backward_names(facts, function);
        if trained.is_empty() {
            continue;
        }
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            if !fetches(facts, call, &trained)
                || facts.is_occasional(event.context)
                || facts.gradients_off(event.context)
            {
                continue;
            }
            let Some(around) = facts.loop_around(event.context) else { continue };
            // The same loop, not the one over epochs around it.
            let trains = facts.events_in(function, around.range).any(|other| {
                other.call().is_some_and(is_backward)
                    && facts
                        .loop_around(other.context)
                        .is_some_and(|inner| inner.range == around.range)
            });
            if trains {
                let method = call.method().unwrap_or_default();
                findings.add(
                    &RULE,
                    event.range,
                    format!("`.{method}()` makes every training step wait for the device"),
                    "keep `.detach()` on the device and fetch it every so many steps",
                );
            }
        }
    }
}

fn is_backward(call: &Call<'_>) -> bool {
    call.method() == Some("backward")
}

fn backward_names<'a>(facts: &Facts<'a>, function: &Function<'a>) -> Vec<&'a str> {
    let calls = function.events.iter().filter_map(Event::call).filter(|call| is_backward(call));
    calls
        .map(|call| match (&*call.node.func, call.node.arguments.args.first()) {
            (Expr::Attribute(func), None) => match &*func.value {
                Expr::Call(scaled) => scaled
                    .arguments
                    .args
                    .first()
                    .map_or("", |argument| facts.text(argument.range())),
                value => facts.text(value.range()),
            },
            (_, Some(argument)) => facts.text(argument.range()),
            _ => "",
        })
        .collect()
}

/// Whether the call brings a value from the device to the host.
fn fetches<'a>(facts: &Facts<'a>, call: &Call<'a>, trained: &[&str]) -> bool {
    let Some(method) = call.method() else { return false };
    if !matches!(method, "item" | "cpu" | "tolist" | "numpy") || !call.args.is_empty() {
        return false;
    }
    if facts.is_tensor(&call.receiver) {
        return !call.receiver.state.device.is(Places::CPU);
    }
    let of_loss = call.place().is_some_and(|place| trained.contains(&place));
    let moved = method == "cpu" && facts.object(&call.receiver).is_none();
    of_loss || moved
}
