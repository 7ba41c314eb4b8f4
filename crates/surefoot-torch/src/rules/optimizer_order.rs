//! SF010: the optimizer is made first and the model moved afterwards.

use ruff_text_size::TextRange;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::Facts;
use crate::model::context::{ContextId, ContextKind};
use crate::model::device::Places;
use crate::model::methods::destination;
use crate::model::value::{Kind, ObjectId};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF010",
    name: "optimizer-before-move",
    severity: Severity::Warning,
    summary: "the optimizer is made before the model is moved to its device",
    fixable: false,
    page: include_str!("pages/SF010.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        let mut moved: Vec<ObjectId> = Vec::new();
        let mut held: Vec<(ObjectId, ContextId)> = Vec::new();
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            if let Some(object) = facts.object(&call.result)
                && object.kind == Kind::Optimizer
                && call.path().is_some()
                && let Some(model) = object.model
            {
                held.push((model, event.context));
            }
            let Some(model) = call.receiver.value.object() else { continue };
            if !facts.is_model(&call.receiver) {
                continue;
            }
            let Some(device) = destination(call).and_then(|to| to.device) else { continue };
            // A model that goes to the CPU and back, to be saved, is where the optimizer met it.
            if device.is(Places::CPU) && held.iter().any(|(held, _)| *held == model) {
                moved.push(model);
            }
            if !device.is_known() || device.is(Places::CPU) {
                continue;
            }
            let made = held.iter().find(|(held, _)| *held == model);
            if let Some((_, context)) = made
                && !moved.contains(&model)
                && always_before(facts, *context, event.range)
            {
                findings.add(
                    &RULE,
                    event.range,
                    "the optimizer above was made from this model's parameters before they moved"
                        .to_owned(),
                    "move the model first, then make the optimizer",
                );
            }
            moved.push(model);
        }
    }
}

/// Whether what happened in a context has surely happened when this is reached: no branch of it
/// leaves this out.
fn always_before(facts: &Facts<'_>, earlier: ContextId, later: TextRange) -> bool {
    facts.around(earlier).all(|context| match context.kind {
        ContextKind::Branch(_) | ContextKind::Handler { .. } => context.range.contains_range(later),
        _ => true,
    })
}
