//! SF017 and SF018: dtypes that MPS lacks, or has only on some systems.

use ruff_text_size::TextRange;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::device::{Device, Places};
use crate::model::event::{Call, Event};
use crate::model::value::{Kind, TorchDtype, Value};
use crate::model::{Facts, Function};

pub(super) static FLOAT64: CheckRule = CheckRule {
    code: "SF017",
    name: "float64-on-mps",
    severity: Severity::Error,
    summary: "float64 meets a device that can be MPS, which has no float64",
    fixable: false,
    page: include_str!("pages/SF017.md"),
    check: float64,
};

pub(super) static HALF: CheckRule = CheckRule {
    code: "SF018",
    name: "half-on-mps",
    severity: Severity::Warning,
    summary: "bfloat16 or float16 on a device that can be MPS, without a check",
    fixable: false,
    page: include_str!("pages/SF018.md"),
    check: half,
};

fn float64(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.mps {
        return;
    }
    for (function, event, call) in facts.calls() {
        let default = call.path() == Some("torch.set_default_dtype")
            && matches!(
                call.args.first().map(|snap| &snap.value),
                Some(Value::Dtype(TorchDtype::F64))
            );
        if (default || meets(facts, call, &[TorchDtype::F64]))
            && !facts.is_guarded(function, event, &["mps", "double", "float64", "dtype"])
        {
            findings.add(
                &FLOAT64,
                event.range,
                "float64 does not exist on MPS, and the device can be MPS here".to_owned(),
                "use float32 there: `dtype=torch.float32`, `.float()` before the move",
            );
        }
    }
}

fn half(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.mps {
        return;
    }
    for (function, event, call) in facts.calls() {
        if (meets(facts, call, &[TorchDtype::F16, TorchDtype::Bf16]) || autocasts(call))
            && !is_checked(facts, function, event)
        {
            report_half(event.range, findings);
        }
    }
}

fn is_checked<'a>(facts: &Facts<'a>, function: &Function<'a>, event: &Event<'a>) -> bool {
    facts.is_guarded(
        function,
        event,
        &["mps", "bf16", "bfloat16", "half", "float16", "fp16", "dtype", "device"],
    )
}

fn report_half(range: TextRange, findings: &mut Findings) {
    findings.add(
        &HALF,
        range,
        "half precision on MPS depends on the chip and the system, and the device can be MPS here"
            .to_owned(),
        "choose the dtype by device, or check first and fall back to float32",
    );
}

/// Whether this call brings one of the dtypes together with a device that can be MPS.
fn meets<'a>(facts: &Facts<'a>, call: &Call<'a>, dtypes: &[TorchDtype]) -> bool {
    if !matches!(facts.kind(&call.result), Some(Kind::Tensor | Kind::Model)) {
        return false;
    }
    let bad = |device: Device, dtype: TorchDtype| {
        device.visibly_can_be(Places::MPS) && dtypes.contains(&dtype)
    };
    let brings =
        call.method().is_some_and(|name| matches!(name, "to" | "double" | "half" | "bfloat16"))
            || call.keyword("dtype").is_some()
            || call.keyword("device").is_some();
    brings
        && bad(call.result.state.device, call.result.state.dtype)
        && !bad(call.receiver.state.device, call.receiver.state.dtype)
}

/// `torch.autocast` in a written half dtype for a device that can be MPS.
fn autocasts(call: &Call<'_>) -> bool {
    let device = call.argument(0, "device_type").and_then(|snap| snap.value.as_device());
    let dtype = call.argument(1, "dtype").map(|snap| &snap.value);
    call.path() == Some("torch.autocast")
        && device.is_some_and(|device| device.visibly_can_be(Places::MPS))
        && matches!(dtype, Some(Value::Dtype(TorchDtype::F16 | TorchDtype::Bf16)))
        && call.keyword("enabled").is_none()
}
