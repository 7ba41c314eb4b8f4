//! SF019: autocast is told another device type than the one the work is on.

use ruff_python_ast::Expr;
use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings, fix};
use crate::finding::Severity;
use crate::model::context::{ContextKind, With};
use crate::model::device::{Device, Places};
use crate::model::event::{Call, Event, Snap};
use crate::model::methods::destination;
use crate::model::value::Value;
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF019",
    name: "autocast-device",
    severity: Severity::Warning,
    summary: "`autocast` gets another device type than the model is on, or no type at all",
    fixable: true,
    page: include_str!("pages/SF019.md"),
    check,
};

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for function in &facts.functions {
        for event in &function.events {
            let Some(call) = event.call() else { continue };
            let known = match call.path() {
                Some("torch.autocast") => !not_a_type(call, findings),
                Some("torch.cuda.amp.autocast") => true,
                _ => false,
            };
            if known {
                wrong_type(facts, function, event, call, findings);
            }
        }
    }
}

/// A device with an index, or a `torch.device`, is no device type.
fn not_a_type(call: &Call<'_>, findings: &mut Findings) -> bool {
    let Some(given) = call.argument(0, "device_type") else { return false };
    let node = call.node.arguments.find_argument_value("device_type", 0).unwrap_or(&call.node.func);
    match &given.value {
        Value::Str(text) if text.contains(':') => {
            let kind = text.split(':').next().unwrap_or(text);
            let finding = findings.add(
                &RULE,
                node.range(),
                format!("`autocast` takes a device type, and `\"{text}\"` is a device"),
                &format!("give `\"{kind}\"`"),
            );
            if let Expr::StringLiteral(_) = node {
                finding.fix = fix("Give the type", node.range(), format!("\"{kind}\""));
            }
            true
        }
        // A parameter called device may hold a string; one made here by torch.device doesn't.
        Value::Device(device) if device.is_known() && device.can() != Places::ANY => {
            let finding = findings.add(
                &RULE,
                node.range(),
                "`autocast` takes a device type as a string, and this is a `torch.device`"
                    .to_owned(),
                "give its `.type`",
            );
            if matches!(node, Expr::Name(_) | Expr::Attribute(_)) {
                finding.fix = fix("Give the type", TextRange::empty(node.end()), ".type");
            }
            true
        }
        _ => false,
    }
}

/// The type is written out and the models called inside are, or can be, elsewhere.
fn wrong_type<'a>(
    facts: &Facts<'a>,
    function: &Function<'a>,
    event: &Event<'a>,
    call: &Call<'a>,
    findings: &mut Findings,
) {
    if call.keyword("enabled").is_some()
        || facts.is_guarded(function, event, &["cuda", "device", "amp", "autocast"])
    {
        return;
    }
    let Some((block, Device::Literal { place, .. })) = block_of(facts, event) else { return };
    let elsewhere = facts.events_in(function, block).filter_map(Event::call).any(|inner| {
        // What is brought to another accelerator inside the block is not for this type.
        if let Some(device) = destination(inner).and_then(|to| to.device) {
            return device.is_known() && !device.can().has(place) && !device.is(Places::CPU);
        }
        let device = inner.receiver.state.device;
        let off = match device {
            Device::Unknown => false,
            Device::Literal { place: at, .. } => at != place,
            Device::Chosen { can, .. } => can != Places::ANY && can != place,
        };
        let fed = |snap: &Snap<'a>| facts.is_tensor(snap) && snap.state.device.is(place);
        facts.calls_model(inner) && off && !inner.args.iter().any(fed)
    });
    if elsewhere {
        findings.add(
            &RULE,
            event.range,
            "the model inside is not always on this device type: elsewhere autocast does nothing"
                .to_owned(),
            "give the type of the device in use: `torch.autocast(device_type=device.type)`",
        );
    }
}

/// The `with` block that this call opens.
fn block_of(facts: &Facts<'_>, event: &Event<'_>) -> Option<(TextRange, Device)> {
    facts.contexts.iter().find_map(|context| match context.kind {
        ContextKind::With(With::Autocast { device, .. })
            if context.range.contains_range(event.range)
                && facts.text(context.range).starts_with("with") =>
        {
            let head = usize::from(event.range.start() - context.range.start());
            let before = &facts.text(context.range)[..head];
            (!before.contains('\n')).then_some((context.range, device))
        }
        _ => None,
    })
}
