//! SF005: `is_built()` decides where `is_available()` should.

use ruff_python_ast::Expr;
use ruff_text_size::Ranged;

use super::{CheckRule, Findings, fix};
use crate::finding::Severity;
use crate::model::event::EventKind;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF005",
    name: "built-is-not-available",
    severity: Severity::Warning,
    summary: "`is_built()` says how PyTorch was compiled, not whether the device is there",
    fixable: true,
    page: include_str!("pages/SF005.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            let available = match call.path() {
                Some("torch.backends.mps.is_built") => "torch.backends.mps.is_available",
                Some("torch.backends.cuda.is_built") => "torch.cuda.is_available",
                _ => continue,
            };
            if asks_both(function, available)
                || function.name.contains("built")
                || !decides(facts, function, call.node.range())
            {
                continue;
            }
            let finding = findings.add(
                &RULE,
                event.range,
                "`is_built()` is true on machines without such a device".to_owned(),
                &format!("ask `{available}()`"),
            );
            if let Expr::Attribute(func) = &*call.node.func {
                let written = facts.text(call.node.func.range());
                if available.ends_with("mps.is_available") {
                    finding.fix = fix("Ask is_available()", func.attr.range, "is_available");
                } else if written == "torch.backends.cuda.is_built" {
                    finding.fix = fix("Ask is_available()", func.range, available);
                }
            }
        }
    }
}

/// Whether the function asks the right question too.
fn asks_both(function: &Function<'_>, available: &str) -> bool {
    function
        .events
        .iter()
        .any(|event| event.call().is_some_and(|call| call.path() == Some(available)))
}

/// Whether the answer decides something, rather than being reported.
fn decides(facts: &Facts<'_>, function: &Function<'_>, call: ruff_text_size::TextRange) -> bool {
    let reported = function.events.iter().any(|event| match &event.kind {
        EventKind::Call(other) => {
            other.node.range() != call && other.node.arguments.range.contains_range(call)
        }
        EventKind::Assign { place, node, .. } => {
            let names_it = place.to_ascii_lowercase().contains("built");
            node.range().contains_range(call) && names_it
        }
        _ => false,
    });
    // In a dictionary or an f-string it is a report as well.
    let before = facts.source[..usize::from(call.start())].trim_end();
    let after = facts.source[usize::from(call.end())..].trim_start();
    let in_text = before.ends_with('{') && after.starts_with(['}', '!', ':']);
    let in_dict = before.ends_with(':') && after.starts_with([',', '}']);
    !(reported || in_text || in_dict)
}
