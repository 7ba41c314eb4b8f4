//! SF034: a handler that goes on on the CPU by hand when the device failed.

use ruff_python_ast::ExceptHandlerExceptHandler;
use ruff_text_size::{Ranged, TextRange};

use super::out_of_memory::{caught, handlers, is_retry, is_work, watches_own_calls, watches_work};
use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::device::Places;
use crate::model::event::{Call, Event, EventKind};
use crate::model::methods::destination;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF034",
    name: "cpu-fallback-by-hand",
    severity: Severity::Warning,
    summary: "an `except` block moves the model or its input to the CPU after device work failed",
    fixable: false,
    page: include_str!("pages/SF034.md"),
    check,
};

/// Kinds of exception that a failing device raises, or that include them.
const OF_DEVICES: [&str; 6] = [
    "RuntimeError",
    "NotImplementedError",
    "OutOfMemoryError",
    "AcceleratorError",
    "BaseException",
    "Exception",
];

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for (function, handler, tried) in handlers(facts) {
        let kind = caught(facts, handler);
        if !(kind.is_empty() || OF_DEVICES.iter().any(|name| kind.contains(name))) {
            continue;
        }
        let Some(body) = body_of(handler) else { continue };
        let Some(moved) =
            facts.events_in(function, body).find(|event| event.call().is_some_and(moves_to_cpu))
        else {
            continue;
        };
        let works =
            watches_work(facts, function, tried) || watches_own_calls(facts, function, tried);
        if works && repeats(facts, function, body, tried) {
            findings.add(
                &RULE,
                moved.range,
                "work that failed on the device is repeated on the CPU by hand: whatever the error was, without a \
                 word, and for ever after"
                    .to_owned(),
                "let `@surefoot.guard(split=0)` run it: it frees memory and splits the batch first, goes to the CPU only for faults of \
                 the device, records it, and comes back; `foot.step(model, optimizer, batch, loss)` does that for training",
            );
        } else if moved.call().is_some_and(|call| replaces_a_move(facts, function, call, tried)) {
            findings.add(
                &RULE,
                moved.range,
                "the device is chosen by trying and falling back to the CPU by hand".to_owned(),
                "`foot = surefoot.Footing(device=\"auto\")` probes each device for real, and `foot.place(model)` moves the \
                 model there; `foot.reason` says why",
            );
        }
    }
}

fn body_of(handler: &ExceptHandlerExceptHandler) -> Option<TextRange> {
    let (first, last) = (handler.body.first()?, handler.body.last()?);
    Some(TextRange::new(first.start(), last.end()))
}

fn moves_to_cpu(call: &Call<'_>) -> bool {
    matches!(call.method(), Some("to" | "cpu"))
        && destination(call)
            .and_then(|to| to.device)
            .is_some_and(|device| device.is_known() && device.is(Places::CPU))
}

/// Whether the handler does again what was tried.
fn repeats<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    body: TextRange,
    tried: TextRange,
) -> bool {
    facts
        .events_in(function, body)
        .filter_map(Event::call)
        .any(|call| is_retry(facts, function, call, tried))
}

/// Whether the tried block moves the same object to a device.
fn replaces_a_move<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    to_cpu: &Call<'a>,
    tried: TextRange,
) -> bool {
    let Some(place) = to_cpu.place() else { return false };
    // As `x.cpu().mean()` in a message it replaces nothing.
    let keeps = to_cpu.dropped
        || function.events.iter().any(|event| match &event.kind {
            EventKind::Assign { place: to, node, .. } => {
                *to == place && node.range() == to_cpu.node.range()
            }
            _ => false,
        });
    keeps
        && facts.events_in(function, tried).filter_map(Event::call).any(|call| {
            matches!(call.method(), Some("to" | "cuda"))
                && call.place() == Some(place)
                && is_work(facts, call)
        })
}
