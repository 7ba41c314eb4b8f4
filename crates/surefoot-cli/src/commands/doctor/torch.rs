//! `surefoot doctor --torch`: the devices of the user's PyTorch, tested by it. The Python package does the work
//! (`surefoot._doctor`); this prints what it finds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Doctor;
use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::interpreter;
use crate::terminal::Terminal;

/// A line that the package prints.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Versions {
        python: String,
        torch: String,
        executable: String,
    },
    Unavailable {
        device: String,
        unavailable: String,
    },
    Checked {
        device: String,
        check: Check,
    },
    Diagnosed {
        device: String,
        hardware: Option<String>,
        usable: bool,
        healthy: bool,
        why: Option<String>,
    },
}

#[derive(Debug, Deserialize, Serialize)]
struct Check {
    name: String,
    ok: bool,
    detail: String,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    device: String,
    healthy: bool,
    usable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hardware: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    checks: Vec<Check>,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    healthy: bool,
    python: String,
    torch: String,
    executable: String,
    devices: Vec<Diagnosis>,
}

pub(super) fn run(doctor: &Doctor, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
    let python = interpreter::chosen(doctor.python.as_deref());
    let named: Vec<String> = match doctor.device.as_str() {
        "auto" => Vec::new(),
        names => names.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    let limit = Duration::from_secs(doctor.timeout);
    let mut summary = Summary::default();
    let mut checks = Vec::new();
    let mut told = Ok(());
    let mut tell = |text: &str| {
        if told.is_ok() && !global.json {
            told = terminal.result(text);
        }
    };
    interpreter::run_module(&python, "surefoot._doctor", &named, limit, |value| {
        match serde_json::from_value(value) {
            Ok(Line::Versions { python, torch, executable }) => {
                tell(&format!("PyTorch {torch}, Python {python} ({executable})\n\n"));
                summary = Summary { python, torch, executable, ..Summary::default() };
            }
            Ok(Line::Unavailable { device, unavailable }) => {
                terminal.note(&format!("{device}: not available, because {unavailable}"));
            }
            Ok(Line::Checked { device, check }) => {
                if checks.is_empty() {
                    tell(&format!("{device}\n"));
                }
                tell(&line(&check));
                checks.push(check);
            }
            Ok(Line::Diagnosed { device, hardware, usable, healthy, why }) => {
                let checks = std::mem::take(&mut checks);
                let found = Diagnosis { device, healthy, usable, hardware, why, checks };
                tell(&verdict(&found));
                summary.devices.push(found);
            }
            // Not a line of the package.
            Err(_) => {}
        }
    })?;
    told?;
    summary.healthy =
        !summary.devices.is_empty() && summary.devices.iter().all(|device| device.healthy);
    if global.json {
        terminal.json(&summary)?;
    }
    Ok(if summary.healthy { Exit::Done } else { Exit::No })
}

fn line(check: &Check) -> String {
    let mark = if check.ok { "ok  " } else { "FAIL" };
    format!("  {mark} {:<20} {} [{:.2} s]\n", check.name, check.detail, check.seconds)
}

fn verdict(found: &Diagnosis) -> String {
    let device = match &found.hardware {
        Some(hardware) => format!("{} ({hardware})", found.device),
        None => found.device.clone(),
    };
    match (found.healthy, found.usable, &found.why) {
        (true, ..) => format!("  {device} is healthy\n\n"),
        (false, true, _) => format!("  {device} can be used, but for what failed above\n\n"),
        (false, false, Some(why)) => format!("  {device} is UNHEALTHY: {why}\n\n"),
        (false, false, None) => format!("  {device} is UNHEALTHY\n\n"),
    }
}
