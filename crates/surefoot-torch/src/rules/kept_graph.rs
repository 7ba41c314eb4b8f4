//! SF013 and SF014: losses or outputs are kept together with the graph that made them.

use ruff_python_ast::{Expr, Operator};
use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings, fix};
use crate::finding::Severity;
use crate::model::context::ContextKind;
use crate::model::event::{Event, EventKind, Snap};
use crate::model::{Facts, Function};

pub(super) static LOSS: CheckRule = CheckRule {
    code: "SF013",
    name: "loss-kept-with-graph",
    severity: Severity::Warning,
    summary: "a loss is summed or stored with its graph, so memory grows with every step",
    fixable: true,
    page: include_str!("pages/SF013.md"),
    check: losses,
};

pub(super) static OUTPUT: CheckRule = CheckRule {
    code: "SF014",
    name: "output-kept-with-graph",
    severity: Severity::Warning,
    summary: "outputs of a model are stored with their graph, so memory grows with every batch",
    fixable: true,
    page: include_str!("pages/SF014.md"),
    check: outputs,
};

/// Something kept in a loop: where it goes, and the expression kept.
struct Kept<'f, 'a> {
    into: &'a str,
    node: &'a Expr,
    value: &'f Snap<'a>,
}

fn kept<'f, 'a>(facts: &Facts<'a>, event: &'f Event<'a>) -> Option<Kept<'f, 'a>> {
    match &event.kind {
        EventKind::Augment { place, op: Operator::Add, node, value, .. } => {
            let node = match node {
                Expr::List(list) if list.elts.len() == 1 => &list.elts[0],
                node => node,
            };
            Some(Kept { into: place, node, value })
        }
        EventKind::Assign { place, node: Expr::BinOp(sum), value, .. }
            if sum.op == Operator::Add =>
        {
            let starts_with_itself = facts.text(sum.left.range()) == *place;
            starts_with_itself.then_some(Kept { into: place, node: &sum.right, value })
        }
        EventKind::Call(call) if call.method() == Some("append") => {
            let [node] = &*call.node.arguments.args else { return None };
            let Expr::Attribute(func) = &*call.node.func else { return None };
            Some(Kept { into: facts.text(func.value.range()), node, value: call.args.first()? })
        }
        _ => None,
    }
}

/// The tensor itself in `loss`, `loss / n` or `loss * x.size(0)`.
fn bare(node: &Expr) -> &Expr {
    match node {
        Expr::BinOp(binary) if matches!(binary.op, Operator::Div | Operator::Mult) => {
            match (&*binary.left, &*binary.right) {
                (loss @ (Expr::Name(_) | Expr::Attribute(_)), factor) if is_factor(factor) => loss,
                (factor, loss @ (Expr::Name(_) | Expr::Attribute(_))) if is_factor(factor) => loss,
                _ => node,
            }
        }
        _ => node,
    }
}

/// A number, or something that looks like a count.
fn is_factor(expr: &Expr) -> bool {
    match expr {
        Expr::NumberLiteral(_) | Expr::Name(_) | Expr::Attribute(_) | Expr::Subscript(_) => true,
        Expr::Call(call) => match &*call.func {
            Expr::Name(name) => name.id.as_str() == "len",
            Expr::Attribute(attribute) => matches!(attribute.attr.as_str(), "size" | "numel"),
            _ => false,
        },
        _ => false,
    }
}

/// The names that `backward()` is called on in a function, with where.
fn backward_calls<'a>(facts: &Facts<'a>, function: &Function<'a>) -> Vec<(&'a str, TextRange)> {
    let calls = function.events.iter().filter_map(Event::call);
    calls
        .filter(|call| call.method() == Some("backward"))
        .filter_map(|call| {
            let Expr::Attribute(func) = &*call.node.func else { return None };
            let given = call.node.arguments.args.first();
            // accelerator.backward(loss), scaler.scale(loss).backward()
            let text = match (&*func.value, given) {
                (Expr::Name(_), Some(given)) => facts.text(given.range()),
                (Expr::Call(inner), None) => match inner.arguments.args.first() {
                    Some(first) => facts.text(first.range()),
                    None => facts.text(inner.range()),
                },
                (value, _) => facts.text(value.range()),
            };
            Some((text, call.node.range()))
        })
        .collect()
}

/// Whether what was kept under this name is itself part of a backward pass.
fn flows_into_backward<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    into: &str,
    backward: &[(&'a str, TextRange)],
) -> bool {
    let root = into.split(['[', '.']).next().unwrap_or(into);
    let name = if root == "self" { into } else { root };
    let mentions = |text: &str| word_in(text, name);
    if backward.iter().any(|(text, _)| mentions(text)) {
        return true;
    }
    function.events.iter().any(|event| match &event.kind {
        EventKind::Assign { place, node, .. } if *place != into => {
            mentions(facts.text(node.range()))
                && backward.iter().any(|(text, _)| word_in(text, place))
        }
        _ => false,
    })
}

/// Whether a name stands in a text as a word of its own.
fn word_in(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(is_word)
            && !text[at + name.len()..].chars().next().is_some_and(is_word)
    })
}

/// Whether the name was last bound to a plain number.
fn is_number<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    name: &str,
    before: TextRange,
) -> bool {
    let last = function.events.iter().rev().find_map(|event| match &event.kind {
        EventKind::Assign { place, node, .. }
            if *place == name && event.range.end() <= before.start() =>
        {
            Some(facts.text(node.range()))
        }
        _ => None,
    });
    last.is_some_and(|text| {
        [".item()", ".detach()", ".data", "float(", ".tolist()"]
            .iter()
            .any(|end| text.contains(end))
    })
}

fn losses(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        let backward = backward_calls(facts, function);
        for event in &function.events {
            let Some(kept) = kept(facts, event) else { continue };
            let Some(around) = facts.loop_around(event.context) else { continue };
            let loss = bare(kept.node);
            if !matches!(loss, Expr::Name(_) | Expr::Attribute(_)) {
                continue;
            }
            let name = facts.text(loss.range());
            let trained = backward.iter().any(|(text, at)| {
                around.range.contains_range(*at) && (*text == name || starts(text, name))
            });
            if !trained
                || facts.gradients_off(event.context)
                || is_number(facts, function, name, event.range)
                || flows_into_backward(facts, function, kept.into, &backward)
            {
                continue;
            }
            let finding = findings.add(
                &LOSS,
                event.range,
                format!(
                    "`{name}` is kept with its graph, so the memory of every step stays in use"
                ),
                "keep the number alone: `.detach()`, or `.item()` once in a while",
            );
            let end = TextRange::empty(loss.end());
            finding.fix = fix("Detach it", end, ".detach()");
        }
    }
}

/// `loss / steps` begins with `loss`.
fn starts(text: &str, name: &str) -> bool {
    let named = ["loss", "err", "cost"].iter().any(|word| name.to_ascii_lowercase().contains(word));
    named && text.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(['/', '*']))
}

fn outputs(facts: &Facts<'_>, findings: &mut Findings) {
    for (index, function) in facts.functions.iter().enumerate() {
        if function.class.is_some_and(|class| facts.classes[class].is_model) {
            continue;
        }
        let backward = backward_calls(facts, function);
        for event in &function.events {
            let Some(kept) = kept(facts, event) else { continue };
            if !facts.is_tensor(kept.value) || !kept.value.state.graph {
                continue;
            }
            let Some(around) = facts.loop_around(event.context) else { continue };
            if !matches!(around.kind, ContextKind::Loop { loader: true, .. })
                || facts.gradients_off(event.context)
                || facts.called_without_gradients.contains(&index)
            {
                continue;
            }
            let name = facts.text(bare(kept.node).range());
            let is_loss = backward.iter().any(|(text, _)| *text == name || starts(text, name));
            let later = backward.iter().any(|(_, at)| at.start() > around.range.end());
            if is_loss || later || flows_into_backward(facts, function, kept.into, &backward) {
                continue;
            }
            let finding = findings.add(
                &OUTPUT,
                event.range,
                "what comes out of the model is kept with its graph, so memory grows with every batch"
                    .to_owned(),
                "keep `.detach()` (and `.cpu()`) of it, or run without gradients",
            );
            if matches!(kept.node, Expr::Name(_)) {
                let end = TextRange::empty(kept.node.end());
                finding.fix = fix("Detach it", end, ".detach()");
            }
        }
    }
}
