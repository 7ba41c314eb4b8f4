//! SF007, SF008, SF009: options of `DataLoader` that don't fit the device or each other.

use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings, fix};
use crate::finding::Severity;
use crate::model::event::{Call, Event};
use crate::model::questions::is_true;
use crate::model::value::Value;
use crate::model::{Facts, Function};

pub(super) static PIN_MEMORY: CheckRule = CheckRule {
    code: "SF007",
    name: "pinned-memory-on-mps",
    severity: Severity::Warning,
    summary: "`pin_memory=True` where the device can be MPS, which has no pinned memory",
    fixable: true,
    page: include_str!("pages/SF007.md"),
    check: pin_memory,
};

pub(super) static WORKERS: CheckRule = CheckRule {
    code: "SF008",
    name: "fixed-workers-on-mps",
    severity: Severity::Warning,
    summary: "`num_workers` is fixed above 0 where the device can be MPS",
    fixable: false,
    page: include_str!("pages/SF008.md"),
    check: workers,
};

pub(super) static PERSISTENT: CheckRule = CheckRule {
    code: "SF009",
    name: "persistent-without-workers",
    severity: Severity::Error,
    summary: "`persistent_workers=True` with no workers raises a ValueError",
    fixable: true,
    page: include_str!("pages/SF009.md"),
    check: persistent,
};

const CHECKS: [&str; 3] = ["mps", "cuda", "device"];

/// The `DataLoader` calls of a file.
fn loaders<'f, 'a>(
    facts: &'f Facts<'a>,
) -> impl Iterator<Item = (&'f Function<'a>, &'f Event<'a>, &'f Call<'a>)> {
    facts.calls().filter(|(_, _, call)| call.path() == Some("torch.utils.data.DataLoader"))
}

/// Where a keyword's value, and the whole keyword, are written.
fn written(call: &Call<'_>, name: &str) -> Option<(TextRange, TextRange)> {
    call.node.arguments.keywords.iter().find_map(|keyword| {
        let is = keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == name);
        is.then(|| (keyword.value.range(), keyword.range))
    })
}

fn pin_memory(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.mps {
        return;
    }
    for (function, event, call) in loaders(facts) {
        if !call.keyword("pin_memory").is_some_and(is_true)
            || facts.is_guarded(function, event, &CHECKS)
        {
            continue;
        }
        let Some((value, keyword)) = written(call, "pin_memory") else { continue };
        let finding = findings.add(
            &PIN_MEMORY,
            keyword,
            "this file can run on MPS, where pinned memory is not supported".to_owned(),
            "pin only for CUDA: `pin_memory=torch.cuda.is_available()`",
        );
        if facts.text(value) == "True"
            && let Some(torch) = facts.torch_name
        {
            let text = format!("{torch}.cuda.is_available()");
            finding.fix = fix("Pin only for CUDA", value, text);
        }
    }
}

fn workers(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.mps {
        return;
    }
    for (function, event, call) in loaders(facts) {
        let fixed = matches!(
            call.keyword("num_workers").map(|snap| &snap.value),
            Some(Value::Int(n)) if *n > 0
        );
        if !fixed || facts.is_guarded(function, event, &CHECKS) {
            continue;
        }
        let Some((_, keyword)) = written(call, "num_workers") else { continue };
        findings.add(
            &WORKERS,
            keyword,
            "this file can run on MPS, where worker processes are spawned and often slower or broken"
                .to_owned(),
            "choose by device: `num_workers=0 if device.type == \"mps\" else 4`, or make it an option",
        );
    }
}

fn persistent(facts: &Facts<'_>, findings: &mut Findings) {
    for (_, _, call) in loaders(facts) {
        if call.is_open() || !call.keyword("persistent_workers").is_some_and(is_true) {
            continue;
        }
        // num_workers is the sixth positional parameter.
        match call.argument(5, "num_workers").map(|snap| &snap.value) {
            None | Some(Value::Int(0)) => {}
            Some(_) => continue,
        }
        let Some((value, keyword)) = written(call, "persistent_workers") else { continue };
        let finding = findings.add(
            &PERSISTENT,
            keyword,
            "`persistent_workers=True` needs `num_workers` above 0".to_owned(),
            "give `num_workers`, or leave `persistent_workers` out",
        );
        if facts.text(value) == "True" {
            finding.fix = fix("Turn it off", value, "False");
        }
    }
}
