//! SF026: `PYTORCH_ENABLE_MPS_FALLBACK` is set when torch has already read it.

use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::Facts;
use crate::model::event::{Event, EventKind};
use crate::model::value::Value;

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF026",
    name: "late-mps-fallback",
    severity: Severity::Error,
    summary: "`PYTORCH_ENABLE_MPS_FALLBACK` is set after `import torch`, which is too late",
    fixable: false,
    page: include_str!("pages/SF026.md"),
    check,
};

const VARIABLE: &str = "PYTORCH_ENABLE_MPS_FALLBACK";

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if memchr::memmem::find(facts.source.as_bytes(), VARIABLE.as_bytes()).is_none() {
        return;
    }
    for (index, function) in facts.functions.iter().enumerate() {
        for event in &function.events {
            if !sets(facts, event) {
                continue;
            }
            // In a function, whatever the module imports has been imported by then.
            let late = facts.torch_imports.iter().any(|(import, place)| {
                *place == 0 && index != 0 || *place == index && import.start() < event.range.start()
            });
            if late {
                let range: TextRange = event.range;
                findings.add(
                    &RULE,
                    range,
                    "torch reads this when it is imported, and it has been imported above"
                        .to_owned(),
                    "set it before the first `import torch`, or in the environment of the process",
                );
            }
        }
    }
}

fn sets(facts: &Facts<'_>, event: &Event<'_>) -> bool {
    match &event.kind {
        EventKind::Assign { place, target, .. } => {
            place.contains("environ") && facts.text(target.range()).contains(VARIABLE)
        }
        EventKind::Call(call) => {
            let setter = matches!(
                call.path(),
                Some("os.environ.setdefault" | "os.putenv" | "os.environ.update")
            );
            let named = matches!(call.args.first().map(|snap| &snap.value), Some(Value::Str(name)) if *name == VARIABLE)
                || call.keyword(VARIABLE).is_some()
                || call.path() == Some("os.environ.update")
                    && facts.text(call.node.range()).contains(VARIABLE);
            setter && named
        }
        _ => false,
    }
}
