//! SF015 and SF016: a model is evaluated with gradients on, or in training mode.

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::context::ContextKind;
use crate::model::event::{Call, Event};
use crate::model::{Facts, Function};

pub(super) static GRADIENTS: CheckRule = CheckRule {
    code: "SF015",
    name: "evaluation-with-gradients",
    severity: Severity::Warning,
    summary: "evaluation runs without `no_grad()` or `inference_mode()`",
    fixable: false,
    page: include_str!("pages/SF015.md"),
    check: gradients,
};

pub(super) static MODE: CheckRule = CheckRule {
    code: "SF016",
    name: "evaluation-in-training-mode",
    severity: Severity::Warning,
    summary: "evaluation runs without `eval()`, so dropout and batch statistics stay on",
    fixable: false,
    page: include_str!("pages/SF016.md"),
    check: mode,
};

/// Whether the name of a function says that it evaluates.
fn evaluates_by_name(name: &str) -> bool {
    let name = name.trim_start_matches('_').to_ascii_lowercase();
    ["evaluate", "validate", "validation", "test_epoch", "predict", "infer", "val_epoch", "eval_"]
        .iter()
        .any(|word| name.starts_with(word) || name.ends_with(word))
        || matches!(name.as_str(), "eval" | "val" | "test" | "inference")
}

/// Whether anything in the function needs gradients.
fn needs_gradients(function: &Function<'_>) -> bool {
    function.events.iter().filter_map(Event::call).any(|call| {
        matches!(call.method(), Some("backward" | "requires_grad_" | "retain_grad"))
            || call.path().is_some_and(|path| {
                path.starts_with("torch.autograd.grad")
                    || path == "torch.autograd.backward"
                    || path == "torch.set_grad_enabled"
                    || path.starts_with("torch.func.")
            })
            || call.keyword("requires_grad").is_some()
    })
}

fn is_eval(call: &Call<'_>) -> bool {
    (call.method() == Some("eval") && call.args.is_empty())
        || (call.method() == Some("train")
            && call
                .argument(0, "mode")
                .is_some_and(|snap| snap.value == crate::model::value::Value::Bool(false)))
}

fn in_model_class(facts: &Facts<'_>, function: &Function<'_>) -> bool {
    function.class.is_some_and(|class| {
        let class = &facts.classes[class];
        class.is_model || class.has_foreign_base
    })
}

fn gradients(facts: &Facts<'_>, findings: &mut Findings) {
    for (index, function) in facts.functions.iter().enumerate() {
        if function.no_grad || needs_gradients(function) || in_model_class(facts, function) {
            continue;
        }
        let by_name = evaluates_by_name(function.name);
        let mut evaluating = false;
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            if is_eval(call) && facts.is_model(&call.receiver) {
                evaluating = true;
            } else if call.method() == Some("train") && facts.is_model(&call.receiver) {
                evaluating = false;
            }
            if !facts.calls_model(call) || facts.gradients_off(event.context) {
                continue;
            }
            let around = facts.loop_around(event.context);
            let over_data = around.is_some_and(|around| {
                matches!(around.kind, ContextKind::Loop { loader: true, .. })
            });
            // A script that evaluates once is as good as a loop; a function may serve anything.
            let script = function.node.is_none();
            let evaluation =
                evaluating && (around.is_some() || by_name || script) || by_name && over_data;
            if evaluation && !facts.called_without_gradients.contains(&index) {
                findings.add(
                    &GRADIENTS,
                    event.range,
                    "the model is evaluated with gradients on: a graph is built and kept for nothing"
                        .to_owned(),
                    "put it under `with torch.inference_mode():` (or `torch.no_grad()`)",
                );
                break;
            }
        }
    }
}

fn mode(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        if in_model_class(facts, function) || needs_gradients_but_trains(function) {
            continue;
        }
        let mut trained = false;
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            if is_eval(call) {
                break;
            }
            if call.method() == Some("train") && facts.is_model(&call.receiver) {
                trained = true;
            }
            if !facts.calls_model(call) || !facts.gradients_off(event.context) {
                continue;
            }
            let over_data = facts.loop_around(event.context).is_some_and(|around| {
                matches!(around.kind, ContextKind::Loop { loader: true, .. })
            });
            let evaluation = over_data || evaluates_by_name(function.name);
            let unseen = !facts.mentions.eval_call;
            if evaluation && (trained || unseen) && mode_matters(facts, call) {
                findings.add(
                    &MODE,
                    event.range,
                    "the model is evaluated without `eval()`: dropout and batch statistics stay on"
                        .to_owned(),
                    "call `model.eval()` before, and `model.train()` before training goes on",
                );
                break;
            }
        }
    }
}

/// Under `set_grad_enabled(phase == "train")` one body serves both.
fn needs_gradients_but_trains(function: &Function<'_>) -> bool {
    function
        .events
        .iter()
        .filter_map(Event::call)
        .any(|call| call.path() == Some("torch.set_grad_enabled"))
}

/// A class of this file without a layer that knows modes is the same in both.
fn mode_matters<'a>(facts: &Facts<'a>, call: &Call<'a>) -> bool {
    let class = facts.object(&call.receiver).and_then(|object| object.class);
    class.is_none_or(|class| facts.classes[class].has_modes)
}
