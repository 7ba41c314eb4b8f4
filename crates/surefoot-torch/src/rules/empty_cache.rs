//! SF023: the allocator's cache is emptied in every turn of a hot loop.

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::Facts;
use crate::model::context::ContextKind;
use crate::model::event::Event;

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF023",
    name: "empty-cache-in-loop",
    severity: Severity::Warning,
    summary: "`empty_cache()` in a hot loop makes every step allocate from the driver again",
    fixable: false,
    page: include_str!("pages/SF023.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            let empties = call
                .path()
                .is_some_and(|path| path.starts_with("torch.") && path.ends_with(".empty_cache"));
            if !empties || facts.is_occasional(event.context) {
                continue;
            }
            let Some(around) = facts.loop_around(event.context) else { continue };
            let over_data = matches!(around.kind, ContextKind::Loop { loader: true, .. });
            let works = || {
                facts.events_in(function, around.range).any(|other| {
                    is_step(facts, other)
                        && facts
                            .loop_around(other.context)
                            .is_some_and(|inner| inner.range == around.range)
                })
            };
            if over_data || works() {
                findings.add(
                    &RULE,
                    event.range,
                    "the cache is emptied in every turn: each step then waits and allocates anew"
                        .to_owned(),
                    "drop it; empty the cache after an out-of-memory error, or between phases",
                );
            }
        }
    }
}

fn is_step<'a>(facts: &Facts<'a>, event: &Event<'a>) -> bool {
    event.call().is_some_and(|call| {
        call.method() == Some("backward") || facts.steps_optimizer(call) || facts.calls_model(call)
    })
}
