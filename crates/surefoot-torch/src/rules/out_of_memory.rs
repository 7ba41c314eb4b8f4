//! SF021 and SF022: handlers that hide an out-of-memory error, or retry while it holds on to tensors.

use ruff_python_ast::{ExceptHandlerExceptHandler, Expr, Stmt};
use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::context::ContextKind;
use crate::model::device::Places;
use crate::model::event::{Call, Event, Target};
use crate::model::methods::destination;
use crate::model::{Facts, Function};

pub(super) static SWALLOWED: CheckRule = CheckRule {
    code: "SF021",
    name: "swallowed-out-of-memory",
    severity: Severity::Warning,
    summary: "`except RuntimeError` around device work goes on without looking at the error",
    fixable: false,
    page: include_str!("pages/SF021.md"),
    check: swallowed,
};

pub(super) static RETRIED: CheckRule = CheckRule {
    code: "SF022",
    name: "retry-inside-handler",
    severity: Severity::Warning,
    summary: "device work is retried inside the handler, while the error keeps its tensors alive",
    fixable: false,
    page: include_str!("pages/SF022.md"),
    check: retried,
};

/// The handlers of a file with the function they are in and the body they watch.
pub(super) fn handlers<'f, 'a>(
    facts: &'f Facts<'a>,
) -> impl Iterator<Item = (&'f Function<'a>, &'a ExceptHandlerExceptHandler, TextRange)> {
    facts.contexts.iter().filter_map(|context| match context.kind {
        ContextKind::Handler { node, tried } => {
            Some((facts.function_of(context.parent), node, tried))
        }
        _ => None,
    })
}

pub(super) fn is_work<'a>(facts: &Facts<'a>, call: &Call<'a>) -> bool {
    facts.calls_model(call)
        || call.method() == Some("backward")
        || facts.steps_optimizer(call)
        || call.method() == Some("cuda")
        || call.method() == Some("to")
            && destination(call)
                .and_then(|to| to.device)
                .is_some_and(|device| device.is_known() && !device.is(Places::CPU))
}

pub(super) fn watches_work<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    tried: TextRange,
) -> bool {
    facts.events_in(function, tried).filter_map(Event::call).any(|call| is_work(facts, call))
}

pub(super) fn caught<'a>(facts: &Facts<'a>, handler: &ExceptHandlerExceptHandler) -> &'a str {
    handler.type_.as_ref().map_or("", |kind| facts.text(kind.range()))
}

fn swallowed(facts: &Facts<'_>, findings: &mut Findings) {
    for (function, handler, tried) in handlers(facts) {
        let kind = caught(facts, handler);
        // Together with other kinds it is a fallback for a missing feature.
        let others = ["AttributeError", "ImportError", "NotImplementedError", "TypeError"];
        if !kind.contains("RuntimeError")
            || others.iter().any(|other| kind.contains(other))
            || !handler.body.iter().all(is_shrug)
            || !watches_work(facts, function, tried)
        {
            continue;
        }
        let head = handler.type_.as_ref().map_or(handler.range, |kind| kind.range());
        findings.add(
            &SWALLOWED,
            head,
            "an out-of-memory error is a RuntimeError too, and this goes on as if nothing had happened"
                .to_owned(),
            "catch `torch.OutOfMemoryError` by itself, and raise what you don't handle; or let `surefoot.guard(split=0)` run it",
        );
    }
}

/// A statement that does not look at the error: it reports, counts, frees memory, goes on. What it
/// prints doesn't matter: a handler that says "out of memory" without asking says it of every error.
fn is_shrug(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Pass(_) | Stmt::Continue(_) | Stmt::Break(_) | Stmt::Delete(_) => true,
        Stmt::Return(stmt) => stmt.value.as_ref().is_none_or(|value| value.is_literal_expr()),
        Stmt::AugAssign(stmt) => stmt.value.is_literal_expr(),
        Stmt::Assign(stmt) => stmt.value.is_literal_expr(),
        Stmt::Expr(stmt) => match &*stmt.value {
            Expr::Call(call) => {
                let name = match &*call.func {
                    Expr::Name(name) => name.id.as_str(),
                    Expr::Attribute(attribute) => attribute.attr.as_str(),
                    _ => return false,
                };
                matches!(
                    name,
                    "print"
                        | "info"
                        | "warning"
                        | "warn"
                        | "error"
                        | "debug"
                        | "exception"
                        | "log"
                        | "write"
                        | "empty_cache"
                        | "collect"
                        | "zero_grad"
                        | "synchronize"
                )
            }
            value => value.is_literal_expr(),
        },
        _ => false,
    }
}

fn retried(facts: &Facts<'_>, findings: &mut Findings) {
    for (function, handler, tried) in handlers(facts) {
        let kind = caught(facts, handler);
        if !(kind.contains("RuntimeError") || kind.contains("OutOfMemory"))
            || !watches_work(facts, function, tried) && !watches_own_calls(facts, function, tried)
        {
            continue;
        }
        let body = match (handler.body.first(), handler.body.last()) {
            (Some(first), Some(last)) => TextRange::new(first.start(), last.end()),
            _ => continue,
        };
        let again = facts
            .events_in(function, body)
            .find(|event| event.call().is_some_and(|call| is_retry(facts, function, call, tried)));
        if let Some(again) = again {
            findings.add(
                &RETRIED,
                again.range,
                "the retry runs while the error still holds the tensors of the failed attempt"
                    .to_owned(),
                "only note the failure in the handler; free and retry after the `except` block, as `surefoot.guard` does",
            );
        }
    }
}

/// Whether the watched body calls functions of this file, or this function again.
pub(super) fn watches_own_calls<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    tried: TextRange,
) -> bool {
    facts.events_in(function, tried).filter_map(Event::call).any(|call| match &call.target {
        Target::Local(index) => facts.functions[*index]
            .events
            .iter()
            .filter_map(Event::call)
            .any(|inner| is_work(facts, inner)),
        _ => false,
    })
}

/// Whether the call repeats what was tried.
pub(super) fn is_retry<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    call: &Call<'a>,
    tried: TextRange,
) -> bool {
    if facts.calls_model(call) || call.method() == Some("backward") {
        return true;
    }
    match &call.target {
        Target::Local(index) => {
            std::ptr::eq(&facts.functions[*index], function)
                || facts
                    .events_in(function, tried)
                    .filter_map(Event::call)
                    .any(|other| matches!(&other.target, Target::Local(tried) if tried == index))
        }
        Target::Method { name, place } => *place == Some("self") && *name == function.name,
        _ => false,
    }
}
