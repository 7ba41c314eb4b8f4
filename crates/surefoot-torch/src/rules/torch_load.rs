//! SF024 and SF025: `torch.load` that depends on where, and by whom, the file was written.

use ruff_python_ast::Expr;
use ruff_text_size::{Ranged, TextRange};

use super::{Findings, Rule, fix};
use crate::finding::{Fix, Severity};
use crate::model::event::{Call, Event};
use crate::model::{Facts, Function};

pub(super) static DEVICE: Rule = Rule {
    code: "SF024",
    name: "load-without-map-location",
    severity: Severity::Warning,
    summary: "`torch.load` without `map_location` fails where the saving device is missing",
    fixable: true,
    page: include_str!("pages/SF024.md"),
    check: device,
};

pub(super) static PICKLE: Rule = Rule {
    code: "SF025",
    name: "load-without-weights-only",
    severity: Severity::Warning,
    summary: "`torch.load` without `weights_only` runs code from the file in older versions",
    fixable: true,
    page: include_str!("pages/SF025.md"),
    check: pickle,
};

fn loads<'f, 'a>(
    facts: &'f Facts<'a>,
) -> impl Iterator<Item = (&'f Function<'a>, &'f Event<'a>, &'f Call<'a>)> {
    facts.functions.iter().flat_map(|function| {
        function.events.iter().filter_map(move |event| {
            let call = event.call()?;
            (call.path() == Some("torch.load") && !call.is_open())
                .then_some((function, event, call))
        })
    })
}

fn device(facts: &Facts<'_>, findings: &mut Findings) {
    for (function, event, call) in loads(facts) {
        if call.argument(1, "map_location").is_some() {
            continue;
        }
        let finding = findings.add(
            &DEVICE,
            event.range,
            "without `map_location` the tensors go back to the device they were saved from"
                .to_owned(),
            "give `map_location=\"cpu\"` (load_state_dict copies from there), or the device in use",
        );
        if goes_into_state(function, call) {
            finding.fix = argument(call, "Load to the CPU", "map_location=\"cpu\"");
        }
    }
}

fn pickle(facts: &Facts<'_>, findings: &mut Findings) {
    for (function, event, call) in loads(facts) {
        if call.keyword("weights_only").is_some()
            || call.keyword("pickle_module").is_some()
            || call.args.len() > 2
        {
            continue;
        }
        let finding = findings.add(
            &PICKLE,
            event.range,
            "before PyTorch 2.6 this unpickles whatever the file holds, code included".to_owned(),
            "give `weights_only=True`, or `weights_only=False` for a file you trust",
        );
        if goes_into_state(function, call) {
            finding.fix = argument(call, "Load weights only", "weights_only=True");
        }
    }
}

/// Whether what is loaded goes straight into `load_state_dict`: then it is a state dict, and is
/// copied from wherever it is.
fn goes_into_state(function: &Function<'_>, call: &Call<'_>) -> bool {
    function.events.iter().filter_map(Event::call).any(|outer| {
        outer.method() == Some("load_state_dict")
            && matches!(outer.node.arguments.args.first(), Some(Expr::Call(inner)) if std::ptr::eq(inner, call.node))
    })
}

/// Adds an argument after the last.
fn argument(call: &Call<'_>, title: &str, text: &str) -> Option<Fix> {
    let arguments = &call.node.arguments;
    let ends = arguments.args.iter().map(Ranged::end);
    let last = ends.chain(arguments.keywords.iter().map(Ranged::end)).max()?;
    fix(title, TextRange::empty(last), format!(", {text}"))
}
