//! SF032: a model gets an input of another shape in every turn of a loop, where the device can be MPS.
//!
//! What counts as varying: a slice with one bound at the loop's variable (`x[:, :t]`), a tensor made
//! with the loop's variable as a size, a sequence that grows by `torch.cat`, and a tokenizer's output
//! that is not padded to a fixed length.

use ruff_python_ast::visitor::{Visitor, walk_expr};
use ruff_python_ast::{Expr, ExprCall, ExprSlice};
use ruff_text_size::Ranged;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::context::{Context, ContextKind};
use crate::model::event::{Call, EventKind};
use crate::model::value::Value;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF032",
    name: "varying-shapes-on-mps",
    severity: Severity::Hint,
    summary: "a model gets another input shape in every turn where the device can be MPS: memory grows with each shape",
    fixable: false,
    page: include_str!("pages/SF032.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.mps {
        return;
    }
    for (function, event, call) in facts.calls() {
        if !runs_model(facts, call) || facts.is_guarded(function, event, &["mps"]) {
            continue;
        }
        let Some(around) = facts.loop_around(event.context) else { continue };
        // Someone who empties the cache in the loop knows.
        if facts.text(around.range).contains("mps.empty_cache") {
            continue;
        }
        let turn = Turn { facts, function, around };
        let inputs = call.node.arguments.args.iter();
        let named = call.node.arguments.keywords.iter().map(|keyword| &keyword.value);
        if let Some(why) = inputs.chain(named).find_map(|input| turn.varies(input)) {
            findings.add(
                &RULE,
                event.range,
                format!("{why}, and MPS keeps what it compiled for every shape it has seen"),
                "pad to a few fixed lengths: `padding=\"max_length\"`, `pad_to_multiple_of=64`, or a cache of keys and values",
            );
        }
    }
}

fn runs_model<'a>(facts: &Facts<'a>, call: &Call<'a>) -> bool {
    facts.calls_model(call) || call.method() == Some("generate") && facts.is_model(&call.receiver)
}

/// One loop, as seen from a call of a model in it.
struct Turn<'f, 'a> {
    facts: &'f Facts<'a>,
    function: &'f Function<'a>,
    around: &'f Context<'a>,
}

impl<'a> Turn<'_, 'a> {
    /// Why the shape of an input changes from turn to turn, if it is seen to.
    fn varies(&self, input: &'a Expr) -> Option<&'static str> {
        if let Some(why) = self.varies_here(input) {
            return Some(why);
        }
        // A name: what it was given in the loop before.
        let place = names(input);
        self.assigned().find_map(|(assigned, node)| {
            if !place.contains(&assigned) {
                return None;
            }
            self.varies_here(node).or_else(|| {
                let grows = grown(node).is_some_and(|parts| {
                    parts.iter().any(|part| self.facts.text(part.range()) == assigned)
                });
                grows.then_some("the input grows by `torch.cat` in every turn")
            })
        })
    }

    /// The assignments in the loop.
    fn assigned(&self) -> impl Iterator<Item = (&'a str, &'a Expr)> {
        let inside = self.facts.events_in(self.function, self.around.range);
        inside.filter_map(|event| match &event.kind {
            EventKind::Assign { place, node, .. } => Some((*place, *node)),
            _ => None,
        })
    }

    fn varies_here(&self, expr: &'a Expr) -> Option<&'static str> {
        let counters = match self.around.kind {
            ContextKind::Loop { target: Some(target), .. } => names(target),
            _ => Vec::new(),
        };
        let mut finder = Finder { turn: self, counters, found: None };
        finder.visit_expr(expr);
        finder.found
    }

    /// The call that was recorded for a node.
    fn call(&self, node: &ExprCall) -> Option<&Call<'a>> {
        let events = self.function.events.iter();
        events.filter_map(|event| event.call()).find(|call| std::ptr::eq(call.node, node))
    }
}

/// Looks for an expression whose shape depends on the loop's variable.
struct Finder<'t, 'f, 'a> {
    turn: &'t Turn<'f, 'a>,
    counters: Vec<&'a str>,
    found: Option<&'static str>,
}

impl<'a> Finder<'_, '_, 'a> {
    /// Whether a size or a bound is computed from the loop's variable alone: what is asked of a tensor,
    /// such as its size, is mostly the same in every turn.
    fn counts(&self, expr: Option<&'a Expr>) -> bool {
        match expr {
            Some(Expr::Name(name)) => self.counters.contains(&name.id.as_str()),
            Some(Expr::BinOp(binary)) => {
                self.counts(Some(&binary.left)) || self.counts(Some(&binary.right))
            }
            Some(Expr::UnaryOp(unary)) => self.counts(Some(&unary.operand)),
            _ => false,
        }
    }

    fn slice(&self, slice: &'a ExprSlice) -> bool {
        // x[i:i + n] has the same length in every turn.
        self.counts(slice.lower.as_deref()) != self.counts(slice.upper.as_deref())
    }
}

impl<'a> Visitor<'a> for Finder<'_, '_, 'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Slice(slice) if self.slice(slice) => {
                self.found = Some("the input is cut at another place in every turn");
            }
            Expr::Call(node) => {
                let Some(call) = self.turn.call(node) else { return walk_expr(self, expr) };
                let makes = matches!(
                    call.path(),
                    Some(
                        "torch.randn" | "torch.rand" | "torch.zeros" | "torch.ones" | "torch.full"
                    )
                );
                if makes && node.arguments.args.iter().any(|size| self.counts(Some(size))) {
                    self.found = Some("the input is made in another size in every turn");
                } else if tokenizes(call) && self.turn.around.range.contains_range(node.range()) {
                    self.found = Some("the tokens of every turn have their own length");
                } else {
                    walk_expr(self, expr);
                }
            }
            // An index picks one element, whatever its value.
            Expr::Subscript(subscript)
                if !subscript.slice.is_tuple_expr() && !subscript.slice.is_slice_expr() =>
            {
                self.visit_expr(&subscript.value);
            }
            Expr::Lambda(_) => {}
            _ => walk_expr(self, expr),
        }
    }
}

/// A tokenizer's call whose result is as long as its text.
fn tokenizes(call: &Call<'_>) -> bool {
    let asks = call.keyword("return_tensors").is_some() && !call.is_open();
    let padded = call.keyword("pad_to_multiple_of").is_some()
        || match call.keyword("padding").map(|snap| &snap.value) {
            None | Some(Value::Bool(_)) => false,
            Some(Value::Str(kind)) => *kind == "max_length",
            Some(_) => true,
        };
    asks && !padded
}

/// The parts that `torch.cat([a, b])` joins.
fn grown(node: &Expr) -> Option<&[Expr]> {
    let Expr::Call(call) = node else { return None };
    let Expr::Attribute(attribute) = &*call.func else { return None };
    if !matches!(attribute.attr.as_str(), "cat" | "concat" | "hstack" | "vstack") {
        return None;
    }
    match call.arguments.args.first()? {
        Expr::Tuple(tuple) => Some(&tuple.elts),
        Expr::List(list) => Some(&list.elts),
        _ => None,
    }
}

/// The plain names in an expression.
fn names(expr: &Expr) -> Vec<&str> {
    struct Names<'a>(Vec<&'a str>);
    impl<'a> Visitor<'a> for Names<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            match expr {
                Expr::Name(name) => self.0.push(name.id.as_str()),
                _ => walk_expr(self, expr),
            }
        }
    }
    let mut names = Names(Vec::new());
    names.visit_expr(expr);
    names.0
}
