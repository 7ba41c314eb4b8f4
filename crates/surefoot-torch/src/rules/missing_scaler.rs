//! SF020: training in float16 without a gradient scaler.

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::event::Event;
use crate::model::methods::destination;
use crate::model::value::TorchDtype;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF020",
    name: "fp16-without-scaler",
    severity: Severity::Warning,
    summary: "training in float16 without a `GradScaler`: small gradients become zero",
    fixable: false,
    page: include_str!("pages/SF020.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if facts.mentions.scaler || facts.mentions.framework {
        return;
    }
    for function in &facts.functions {
        if !trains(facts, function) {
            continue;
        }
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            let halves = facts.is_model(&call.receiver)
                && destination(call).is_some_and(|to| to.dtype == Some(TorchDtype::F16));
            let casts = matches!(call.path(), Some("torch.autocast" | "torch.cuda.amp.autocast"))
                && opens_float16(facts, event)
                && call.keyword("enabled").is_none();
            if halves || casts {
                findings.add(
                    &RULE,
                    event.range,
                    "float16 training without a scaler: small gradients underflow to zero"
                        .to_owned(),
                    "scale the loss with `torch.amp.GradScaler`, or use bfloat16",
                );
                break;
            }
        }
    }
}

/// Whether the function runs a backward pass and a step.
fn trains<'a>(facts: &Facts<'a>, function: &Function<'a>) -> bool {
    let calls = || function.events.iter().filter_map(Event::call);
    calls().any(|call| call.method() == Some("backward"))
        && calls().any(|call| facts.steps_optimizer(call))
}

/// Whether the `with` block this call opens computes in float16 with gradients on.
fn opens_float16<'a>(facts: &Facts<'a>, event: &Event<'a>) -> bool {
    let function = facts.function_of(event.context);
    function.events.iter().any(|inner| {
        let inside =
            facts.around(inner.context).any(|context| context.range.contains_range(event.range));
        inside
            && inner.range.start() > event.range.start()
            && !facts.gradients_off(inner.context)
            && facts
                .autocast_around(inner.context)
                .is_some_and(|(_, dtype)| dtype == TorchDtype::F16)
    })
}
