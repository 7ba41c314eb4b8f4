//! SF031: `device_map="auto"` in float32, where the device can be MPS.

use ruff_text_size::Ranged;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::Facts;
use crate::model::event::Call;
use crate::model::value::{TorchDtype, Value};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF031",
    name: "device-map-float32-on-mps",
    severity: Severity::Warning,
    summary: "`device_map=\"auto\"` loads float32 where the device can be MPS: twice the memory, and what does not fit goes to the disk",
    fixable: false,
    page: include_str!("pages/SF031.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.mps {
        return;
    }
    for (function, event, call) in facts.calls() {
        if !loads_automatically(call) || facts.is_guarded(function, event, &["mps", "device"]) {
            continue;
        }
        let message = match float32(call) {
            Some(Float32::Written) => {
                "this file can run on MPS, where float32 takes twice the memory that CPU and GPU share"
            }
            Some(Float32::Default) => {
                "without `dtype` Transformers before 5 loads float32, and this file can run on MPS"
            }
            None => continue,
        };
        let keyword = call.node.arguments.find_keyword("device_map");
        findings.add(
            &RULE,
            keyword.map_or(event.range, |keyword| keyword.range()),
            message.to_owned(),
            "give `dtype=\"auto\"` or a half dtype that the device has; on MPS a model that fits needs no `device_map`",
        );
    }
}

/// A call that loads pretrained weights with `device_map="auto"`, all of whose arguments are seen.
fn loads_automatically(call: &Call<'_>) -> bool {
    let loads = call.path().is_some_and(|path| {
        path.starts_with("transformers.")
            && (path.ends_with(".from_pretrained") || path == "transformers.pipeline")
    });
    let quantised = ["quantization_config", "load_in_8bit", "load_in_4bit"];
    loads
        && !call.is_open()
        && matches!(call.keyword("device_map").map(|snap| &snap.value), Some(Value::Str("auto")))
        && !quantised.iter().any(|name| call.keyword(name).is_some())
}

enum Float32 {
    Written,
    Default,
}

fn float32(call: &Call<'_>) -> Option<Float32> {
    match call.keyword("dtype").or_else(|| call.keyword("torch_dtype")).map(|snap| &snap.value) {
        None => Some(Float32::Default),
        Some(Value::Dtype(TorchDtype::F32) | Value::Str("float32")) => Some(Float32::Written),
        Some(_) => None,
    }
}
