//! SF006: CUDA is written into the code, unconditionally.

use ruff_python_ast::Expr;
use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::event::{Call, Event, EventKind};
use crate::model::value::Value;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF006",
    name: "hard-coded-cuda",
    severity: Severity::Warning,
    summary: "`.cuda()` or `\"cuda\"` is used without asking whether CUDA is there",
    fixable: false,
    page: include_str!("pages/SF006.md"),
    check,
};

/// A test that mentions one of these is taken as a check.
const CHECKS: [&str; 8] =
    ["cuda", "gpu", "device", "rank", "distributed", "accelerator", "world_size", "is_available"];

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    // Code that binds processes to CUDA devices means CUDA.
    let has =
        |needle: &str| memchr::memmem::find(facts.source.as_bytes(), needle.as_bytes()).is_some();
    if has("cuda.set_device") || has("\"nccl\"") || has("'nccl'") || has("import triton") {
        return;
    }
    for function in &facts.functions {
        if is_marked(facts, function) {
            continue;
        }
        for event in &function.events {
            let Some((range, what)) = hard_coded(facts, event) else { continue };
            if facts.is_guarded(function, event, &CHECKS) {
                continue;
            }
            findings.add(
                &RULE,
                range,
                format!("{what} fails on a machine without CUDA"),
                "choose once: `device = torch.accelerator.current_accelerator() or \"cpu\"`, or `\"cuda\" if torch.cuda.is_available() else \"cpu\"`, and use `.to(device)`",
            );
        }
    }
}

fn hard_coded<'a>(facts: &Facts<'a>, event: &Event<'a>) -> Option<(TextRange, String)> {
    match &event.kind {
        EventKind::Call(call) => in_call(facts, call),
        EventKind::Assign { place, node, .. } => {
            let last = place.rsplit('.').next().unwrap_or(place);
            let named = last.eq_ignore_ascii_case("device");
            (named && is_cuda(node))
                .then(|| (node.range(), format!("`{place} = {}`", facts.text(node.range()))))
        }
        _ => None,
    }
}

fn in_call<'a>(facts: &Facts<'a>, call: &Call<'a>) -> Option<(TextRange, String)> {
    let name = call.method().or_else(|| call.path()?.rsplit('.').next().map(|_| ""))?;
    if name == "cuda" {
        // An explicit index or device was chosen by someone.
        let chosen = call.args.first().is_some_and(|snap| !matches!(snap.value, Value::Int(_)))
            || call.keyword("device").is_some();
        let Expr::Attribute(func) = &*call.node.func else { return None };
        let range = TextRange::new(func.attr.range.start(), call.node.end());
        return (!chosen).then(|| (range, "`.cuda()`".to_owned()));
    }
    let arguments = &call.node.arguments;
    let direct =
        matches!(call.path(), Some("torch.device" | "torch.set_default_device")) || name == "to";
    if direct
        && let Some(first) = arguments.args.first()
        && is_cuda(first)
        && arguments.args.len() == 1
    {
        return Some((first.range(), format!("`{}`", facts.text(first.range()))));
    }
    let of_torch = call.path().is_some_and(|path| path.starts_with("torch"))
        || call.method().is_some_and(|name| name == "to" || name.starts_with("new_"));
    let keyword = arguments.keywords.iter().find(|keyword| {
        let arg = keyword.arg.as_ref().map(|arg| arg.as_str());
        matches!(arg, Some("device" | "map_location")) && is_cuda(&keyword.value)
    })?;
    of_torch.then(|| (keyword.value.range(), format!("`{}`", facts.text(keyword.range))))
}

fn is_cuda(expr: &Expr) -> bool {
    let Expr::StringLiteral(text) = expr else { return false };
    let text = text.value.to_str();
    text == "cuda" || text.strip_prefix("cuda:").is_some_and(|index| index.parse::<u8>().is_ok())
}

/// Tests that are skipped without CUDA carry a decorator that says so.
fn is_marked(facts: &Facts<'_>, function: &Function<'_>) -> bool {
    let mentions = |range: TextRange| {
        let text = facts.text(range).to_ascii_lowercase();
        text.contains("cuda") || text.contains("gpu")
    };
    let own = function.node.is_some_and(|node| {
        node.decorator_list.iter().any(|decorator| mentions(decorator.range))
            || node.name.as_str().to_ascii_lowercase().contains("cuda")
            || node.name.as_str().to_ascii_lowercase().contains("gpu")
    });
    let class = function.class.is_some_and(|class| {
        let node = facts.classes[class].node;
        node.decorator_list.iter().any(|decorator| mentions(decorator.range))
    });
    own || class
}
