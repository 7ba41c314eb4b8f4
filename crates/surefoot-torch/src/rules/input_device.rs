//! SF002: a model is called with an input that is on another device.

use ruff_text_size::Ranged;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::device::{Apart, Device};
use crate::model::event::{Call, Event};
use crate::model::methods::destination;
use crate::model::value::Maker;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF002",
    name: "input-on-other-device",
    severity: Severity::Error,
    summary: "a model and its input are on different devices",
    fixable: false,
    page: include_str!("pages/SF002.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if facts.mentions.framework {
        return;
    }
    for (index, function) in facts.functions.iter().enumerate() {
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            if !facts.calls_model(call) {
                continue;
            }
            let Some(model) = facts.object(&call.receiver) else { continue };
            let at = call.receiver.state.device;
            let indifferent = model.class.map(|class| &facts.classes[class]).is_some_and(|class| {
                class.touches_devices || at == Device::CPU && !class.has_weights
            });
            // A model made elsewhere may have been moved since.
            let moved_since = at == Device::CPU && model.function != index;
            if indifferent || moved_since {
                continue;
            }
            for (snap, node) in call.args.iter().zip(&call.node.arguments.args) {
                if !facts.is_tensor(snap) {
                    continue;
                }
                let mut input = snap.state.device;
                // Batches of a loader from elsewhere, given to a model that was moved right here.
                let untouched =
                    facts.object(snap).is_some_and(|object| object.maker == Maker::Batch)
                        && moves_here(function, call, facts);
                if untouched && input == Device::Unknown {
                    input = Device::CPU;
                }
                let apart = at.apart(input);
                if apart == Apart::No || facts.is_in_branch_on(event, &["cuda", "gpu", "mps"]) {
                    continue;
                }
                findings.add(
                    &RULE,
                    node.range(),
                    format!("the model is on {}, its input on {}", at.describe(), input.describe()),
                    remedy(at),
                );
                break;
            }
        }
    }
}

fn remedy(model: Device) -> &'static str {
    if model == Device::CPU {
        "move the model to the same device before it is called"
    } else {
        "move the input to the model's device first, for example `x = x.to(device)`"
    }
}

/// Whether the function moves this model itself, and nothing else but the model.
fn moves_here<'a>(function: &Function<'a>, called: &Call<'a>, facts: &Facts<'a>) -> bool {
    let mut moved = false;
    for call in function.events.iter().filter_map(Event::call) {
        let Some(device) = destination(call).and_then(|to| to.device) else { continue };
        if call.receiver.value == called.receiver.value {
            moved |= device.is_known();
        } else if facts.is_tensor(&call.receiver) || facts.object(&call.receiver).is_none() {
            return false;
        }
    }
    moved
}
