//! SF004: `.to()` on a tensor as a statement: the moved tensor is thrown away.

use ruff_python_ast::Expr;
use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings, fix};
use crate::finding::Severity;
use crate::model::Facts;
use crate::model::value::Maker;

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF004",
    name: "dropped-move",
    severity: Severity::Error,
    summary: "the result of `.to()`, `.cuda()` or the like on a tensor is dropped",
    fixable: true,
    page: include_str!("pages/SF004.md"),
    check,
};

const MOVES: [&str; 7] = ["to", "cuda", "cpu", "half", "float", "double", "bfloat16"];

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    // Batches of graphs move in place.
    let has =
        |needle: &str| memchr::memmem::find(facts.source.as_bytes(), needle.as_bytes()).is_some();
    let graphs = has("torch_geometric") || has("import dgl");
    for function in &facts.functions {
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            let Some(method) = call.method().filter(|method| MOVES.contains(method)) else {
                continue;
            };
            if !call.dropped || !facts.is_tensor(&call.receiver) {
                continue;
            }
            let batch =
                facts.object(&call.receiver).is_some_and(|object| object.maker == Maker::Batch);
            if batch && graphs {
                continue;
            }
            let finding = findings.add(
                &RULE,
                event.range,
                format!(
                    "`.{method}()` returns a new tensor, and it is dropped: this one stays as it is"
                ),
                "assign the result",
            );
            if let (Some(place), Expr::Attribute(func)) = (call.place(), &*call.node.func)
                && matches!(*func.value, Expr::Name(_))
            {
                let start = TextRange::empty(call.node.start());
                finding.fix = fix("Assign the result", start, format!("{place} = "));
            }
        }
    }
}
