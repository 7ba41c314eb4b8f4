//! `surefoot doctor`: tests each device and suggests settings.

mod torch;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot::device::probe::{Check, Finding, Settings, probe};
use surefoot::device::{DeviceInfo, DeviceName, Selector, open, select, supervisor};
use surefoot::journal::{Event, EventKind};
use surefoot::place::{Dtype, DtypeSupport};

use crate::args::Global;
use crate::child::own_command;
use crate::commands::devices;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// Test each device: storage, arithmetic, dtypes, limits, threads, copies, recovery
#[derive(Debug, Args)]
#[command(after_help = "\
Each device is tested in a child process, so that a crash of its driver is reported like any other
failure. The exit code is 1 if a device is unhealthy or a named one is missing.

Examples:
  surefoot doctor                 every device that is found
  surefoot doctor --device gpu    this one, which must be there
  surefoot doctor --json          as JSON
  surefoot doctor --torch         the devices of your PyTorch, tested by it
  surefoot doctor --torch --python .venv/bin/python --device cuda")]
pub(crate) struct Doctor {
    /// Test these devices only: cpu, gpu, gpu:1, vulkan, metal, mps, cuda, cuda:0; auto for all
    #[arg(long, value_name = "NAMES", default_value = "auto")]
    device: String,
    /// Stop the test of a device after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Test the devices of the user's PyTorch instead: products, convolutions, attention, dtypes, threads
    #[arg(long)]
    torch: bool,
    /// The interpreter for --torch; by default that of the active virtual environment, else the one beside this program, else python3
    #[arg(long, value_name = "PATH", requires = "torch")]
    python: Option<PathBuf>,
    /// Test in this process and print findings; the command runs itself so in a child process
    #[arg(long, hide = true)]
    in_process: bool,
}

/// What was found about one device.
#[derive(Debug, Default, Serialize)]
struct Diagnosis {
    device: String,
    healthy: bool,
    /// Why it could not be opened, or how its test ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<DeviceInfo>,
    checks: Vec<Check>,
    dtypes: Vec<(Dtype, DtypeSupport)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<Settings>,
}

#[derive(Debug, Serialize)]
struct Summary {
    healthy: bool,
    devices: Vec<Diagnosis>,
}

impl Doctor {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.torch {
            return torch::run(&self, global, terminal);
        }
        let selector = select(&self.device).map_err(|error| {
            Failure::usage(format!("--device {} can't be tested", self.device)).caused_by(&error)
        })?;
        if self.in_process {
            return probe_here(&selector, terminal);
        }
        let journal = global.open_journal()?;
        let found = devices::find();
        let asked: Vec<DeviceName> = match &selector {
            Selector::Chain(names) | Selector::Together { names, .. } => names.clone(),
            Selector::Auto => found
                .iter()
                .filter(|device| {
                    if let Some(why) = &device.unavailable {
                        terminal.note(&format!("{}: not available, because {why}", device.name));
                    }
                    device.info.is_some()
                })
                .map(|device| device.name)
                .collect(),
        };
        let mut diagnoses = Vec::new();
        for name in asked {
            let info = found.iter().find(|device| device.name == name).and_then(|d| d.info.clone());
            if !global.json {
                terminal.result(&heading(name, info.as_ref()))?;
            }
            let diagnosis = self.diagnose(name, info, |check| {
                if global.json { Ok(()) } else { terminal.result(&line(check)) }
            })?;
            journal.with(|| {
                let event = Event::new(EventKind::Note, "doctor").device(name.to_string());
                event.context("healthy", diagnosis.healthy)
            });
            if !global.json {
                terminal.result(&verdict(&diagnosis))?;
            }
            diagnoses.push(diagnosis);
        }
        let healthy = diagnoses.iter().all(|diagnosis| diagnosis.healthy);
        if global.json {
            terminal.json(&Summary { healthy, devices: diagnoses })?;
        }
        crate::args::flush(&journal, terminal);
        Ok(if healthy { Exit::Done } else { Exit::No })
    }

    fn diagnose(
        &self,
        name: DeviceName,
        info: Option<DeviceInfo>,
        mut tell: impl FnMut(&Check) -> Result<(), Failure>,
    ) -> Result<Diagnosis, Failure> {
        let mut diagnosis = Diagnosis { device: name.to_string(), info, ..Default::default() };
        let command = own_command(["doctor", "--in-process", "--device", &name.to_string()])
            .map_err(|error| Failure::usage("the test could not be started").caused_by(&error))?;
        let mut doing = String::from("opening it");
        let mut told = Ok(());
        let ended = supervisor::run_probe(command, Duration::from_secs(self.timeout), |text| {
            match serde_json::from_str(text) {
                Ok(Finding::Starting(what)) => doing = what,
                Ok(Finding::Checked(check)) => {
                    if told.is_ok() {
                        told = tell(&check);
                    }
                    diagnosis.checks.push(check);
                }
                Ok(Finding::Dtype(dtype, support)) => diagnosis.dtypes.push((dtype, support)),
                Ok(Finding::Settings(settings)) => diagnosis.settings = Some(settings),
                // Not a finding: drivers print to stdout as well.
                Err(_) => {}
            }
        });
        told?;
        if let Err(fault) = ended {
            diagnosis.failure = Some(format!("{doing}: {}", fault.chain.join(": ")));
        }
        diagnosis.healthy = diagnosis.failure.is_none()
            && diagnosis.settings.is_some()
            && diagnosis.checks.iter().all(|check| check.passed)
            && diagnosis.dtypes.contains(&(Dtype::F32, DtypeSupport::Works));
        Ok(diagnosis)
    }
}

/// The child process: prints one finding per line.
fn probe_here(selector: &Selector, terminal: &Terminal) -> Result<Exit, Failure> {
    let (Selector::Chain(names) | Selector::Together { names, .. }) = selector else {
        return Err(Failure::usage("--in-process needs --device"));
    };
    for name in names {
        let device = open(*name).map_err(Failure::from)?;
        let mut written = Ok(());
        probe(&device, |finding| {
            if written.is_ok() {
                written = terminal.json_line(&finding);
            }
        });
        written?;
    }
    Ok(Exit::Done)
}

fn heading(name: DeviceName, info: Option<&DeviceInfo>) -> String {
    match info {
        Some(info) => {
            let memory = info.memory_total.map_or_else(String::new, |b| format!(", {}", Bytes(b)));
            format!("{name}: {}{memory} ({})\n", info.label, info.driver)
        }
        None => format!("{name}\n"),
    }
}

fn line(check: &Check) -> String {
    let mark = if check.passed { "ok  " } else { "FAIL" };
    format!("  {mark} {:<42} {} [{:.2} s]\n", check.name, check.detail, check.seconds)
}

fn verdict(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    if let Some(failure) = &diagnosis.failure {
        let _ = writeln!(text, "  FAIL {failure}");
    }
    if !diagnosis.dtypes.is_empty() {
        let dtypes: Vec<_> =
            diagnosis.dtypes.iter().map(|(dtype, support)| format!("{dtype} {support}")).collect();
        let _ = writeln!(text, "  dtypes: {}", dtypes.join(", "));
    }
    if let Some(settings) = &diagnosis.settings {
        let _ = writeln!(text, "  settings to use:");
        let mut row = |name: &str, value: &dyn std::fmt::Display, because: &str| {
            let _ = writeln!(text, "    {name:<16} {value:<6} {because}");
        };
        row("precision", &settings.precision.value, &settings.precision.because);
        row("loader workers", &settings.loader_workers.value, &settings.loader_workers.because);
        let staging = if settings.staging.value { "yes" } else { "no" };
        row("staging", &staging, &settings.staging.because);
        row("batch", &settings.batch.value, &settings.batch.because);
    }
    let word = if diagnosis.healthy { "healthy" } else { "UNHEALTHY" };
    let _ = writeln!(text, "  {} is {word}\n", diagnosis.device);
    text
}
