//! SF011 and SF012: gradients that are never cleared, or cleared at the wrong moment.

use ruff_python_ast::Expr;
use ruff_text_size::{Ranged, TextRange};
use rustc_hash::FxHashSet;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::event::{Call, Event, EventKind, Target};
use crate::model::value::Kind;
use crate::model::{Facts, Function};

pub(super) static MISSING: CheckRule = CheckRule {
    code: "SF011",
    name: "missing-zero-grad",
    severity: Severity::Error,
    summary: "the optimizer steps in a loop that never clears the gradients",
    fixable: false,
    page: include_str!("pages/SF011.md"),
    check: missing,
};

pub(super) static MISPLACED: CheckRule = CheckRule {
    code: "SF012",
    name: "misplaced-zero-grad",
    severity: Severity::Error,
    summary: "gradients are cleared outside the loop, or between `backward()` and `step()`",
    fixable: false,
    page: include_str!("pages/SF012.md"),
    check: misplaced,
};

fn is_backward(call: &Call<'_>) -> bool {
    call.method() == Some("backward") || call.path() == Some("torch.autograd.backward")
}

/// Whether an event clears gradients.
fn clears(event: &Event<'_>) -> bool {
    match &event.kind {
        EventKind::Call(call) => {
            call.method() == Some("zero_grad")
                || call.method() == Some("zero_")
                    && call.place().is_some_and(|place| place.ends_with(".grad"))
                || matches!(call.target, Target::Name(name) if name.contains("zero_grad"))
        }
        EventKind::Assign { place, node, .. } => {
            place.ends_with(".grad") && matches!(node, Expr::NoneLiteral(_))
        }
        _ => false,
    }
}

/// A step of an optimizer that does not evaluate the loss itself.
fn is_plain_step<'a>(facts: &Facts<'a>, call: &Call<'a>) -> bool {
    let plain = call.args.is_empty() && call.keywords.is_empty();
    facts.steps_optimizer(call)
        && (plain || facts.kind(&call.receiver) == Some(Kind::Scaler) || is_scaler(call))
}

fn is_scaler(call: &Call<'_>) -> bool {
    call.place().is_some_and(|place| place.ends_with("scaler"))
}

/// The loops of a function that run `backward()` and `step()` in each turn, with the step.
fn training_loops<'f, 'a>(
    facts: &'f Facts<'a>,
    function: &'f Function<'a>,
) -> Vec<(TextRange, &'f Event<'a>)> {
    let mut loops: Vec<(TextRange, &'f Event<'a>)> = Vec::new();
    for event in &function.events {
        let Some(call) = event.call() else { continue };
        if !is_plain_step(facts, call) {
            continue;
        }
        let Some(around) = facts.loop_around(event.context) else { continue };
        let range = around.range;
        let trains =
            facts.events_in(function, range).any(|event| event.call().is_some_and(is_backward));
        // An optimizer made anew in each turn has nothing to clear.
        let fresh =
            facts.object(&call.receiver).is_some_and(|object| range.contains_range(object.made));
        if trains && !fresh && !loops.iter().any(|(known, _)| *known == range) {
            loops.push((range, event));
        }
    }
    loops
}

fn missing(facts: &Facts<'_>, findings: &mut Findings) {
    let clearing = Clearing::of(facts);
    for (index, function) in facts.functions.iter().enumerate() {
        for (range, step) in training_loops(facts, function) {
            let cleared = function.events.iter().any(clears);
            if cleared || clearing.in_loop(facts, function, range) {
                continue;
            }
            report_missing(step.range, findings);
        }
        step_function(facts, index, findings);
    }
}

fn report_missing(range: TextRange, findings: &mut Findings) {
    findings.add(
        &MISSING,
        range,
        "the gradients are never cleared, so each step adds those of all steps before".to_owned(),
        "call `optimizer.zero_grad()` before `backward()`",
    );
}

/// A function of one step that is called in a loop, in a file that never clears gradients.
fn step_function(facts: &Facts<'_>, index: usize, findings: &mut Findings) {
    let function = &facts.functions[index];
    if facts.mentions.zero_grad || function.node.is_none() {
        return;
    }
    let calls = || function.events.iter().filter_map(|event| Some((event, event.call()?)));
    let Some((step, _)) = calls().find(|(event, call)| {
        is_plain_step(facts, call) && facts.loop_around(event.context).is_none()
    }) else {
        return;
    };
    let trains = calls().any(|(_, call)| is_backward(call));
    let repeated = facts.called_in_loops.contains(&index);
    if trains && repeated {
        report_missing(step.range, findings);
    }
}

/// The functions of a file that clear gradients.
struct Clearing<'a> {
    functions: FxHashSet<usize>,
    names: FxHashSet<&'a str>,
}

impl<'a> Clearing<'a> {
    fn of(facts: &Facts<'a>) -> Self {
        let mut clearing = Self { functions: FxHashSet::default(), names: FxHashSet::default() };
        for (index, function) in facts.functions.iter().enumerate() {
            if function.events.iter().any(clears) {
                clearing.functions.insert(index);
                clearing.names.insert(function.name);
            }
        }
        clearing
    }

    /// Whether one of them is called in the loop.
    fn in_loop(&self, facts: &Facts<'a>, function: &Function<'a>, range: TextRange) -> bool {
        facts.events_in(function, range).filter_map(Event::call).any(|call| match &call.target {
            Target::Local(index) => self.functions.contains(index),
            Target::Method { name, .. } => self.names.contains(name),
            _ => false,
        })
    }
}

fn misplaced(facts: &Facts<'_>, findings: &mut Findings) {
    let clearing = Clearing::of(facts);
    for function in &facts.functions {
        for (range, step) in training_loops(facts, function) {
            let inside: Vec<_> =
                facts.events_in(function, range).filter(|event| clears(event)).collect();
            if inside.is_empty() {
                let outside = function.events.iter().find(|event| clears(event));
                if let Some(outside) = outside
                    && !clearing.in_loop(facts, function, range)
                {
                    findings.add(
                        &MISPLACED,
                        outside.range,
                        "the gradients are cleared outside the loop that steps the optimizer"
                            .to_owned(),
                        "move `zero_grad()` into the loop, before `backward()`",
                    );
                }
            } else {
                wiped(facts, function, range, step, &inside, findings);
            }
        }
    }
}

/// `backward()`, then `zero_grad()`, then `step()`, one after the other.
fn wiped<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    range: TextRange,
    step: &Event<'a>,
    clearing: &[&Event<'a>],
    findings: &mut Findings,
) {
    let backward: Vec<&Event<'a>> = facts
        .events_in(function, range)
        .filter(|event| event.call().is_some_and(is_backward) && event.context == step.context)
        .collect();
    // With several backward passes or steps, which belongs to which is not to be seen.
    let steps = facts
        .events_in(function, range)
        .filter(|event| event.call().is_some_and(|call| facts.steps_optimizer(call)))
        .count();
    let [backward] = backward[..] else { return };
    if steps != 1 || clearing.len() != 1 {
        return;
    }
    let clear = clearing[0];
    if clear.context == step.context
        && backward.range.end() <= clear.range.start()
        && clear.range.end() <= step.range.start()
    {
        findings.add(
            &MISPLACED,
            clear.range.range(),
            "the gradients are cleared after `backward()` and before `step()`: the step does nothing"
                .to_owned(),
            "move `zero_grad()` before `backward()` or after `step()`",
        );
    }
}
