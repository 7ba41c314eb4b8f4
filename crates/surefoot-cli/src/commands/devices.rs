//! `surefoot devices`: lists the devices that this build can use on this machine.

use std::time::Duration;

use clap::Args;
use surefoot::device::discover::{Found, discover};
use surefoot::device::memory::Bytes;
use surefoot::device::{Backend, DeviceInfo, DeviceKind, DeviceName, is_in_build, named};

use crate::args::Global;
use crate::child::own_command;
use crate::exit::{Exit, Failure};
use crate::terminal::{Table, Terminal};

/// List the devices that this build can use
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  surefoot devices            a table
  surefoot devices --json     all details of each device")]
pub(crate) struct Devices {
    /// Look for devices in this process and print JSON; the command runs itself so in a child process
    #[arg(long, hide = true)]
    in_process: bool,
}

/// Loading all drivers takes seconds; one that takes longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Devices {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.in_process {
            terminal.json(&discover())?;
            return Ok(Exit::Done);
        }
        let found = find();
        if global.json {
            terminal.json(&found)?;
        } else {
            terminal.result(&table(&found))?;
            let absent = not_in_this_build();
            if !absent.is_empty() {
                terminal.note(&format!("not in this build: {absent}"));
            }
        }
        Ok(Exit::Done)
    }
}

/// Every device of this build. Those that need a driver are looked for in a child process, so
/// that a crash of a driver is only a line in the table.
pub(crate) fn find() -> Vec<Found> {
    let with_driver: Vec<Backend> = Backend::PREFERRED
        .into_iter()
        .filter(|backend| is_in_build(*backend) && *backend != Backend::Cpu)
        .collect();
    if with_driver.is_empty() {
        return discover();
    }
    let mut text = String::new();
    let looked = own_command(["devices", "--in-process"]).map_or_else(
        |error| Err(error.to_string()),
        |command| {
            surefoot::device::supervisor::run_probe(command, TIMEOUT, |line| text += line)
                .map_err(|fault| fault.chain.join(": "))
        },
    );
    let parsed = looked.and_then(|()| {
        serde_json::from_str::<Vec<Found>>(&text).map_err(|error| error.to_string())
    });
    parsed.unwrap_or_else(|why| {
        let crashed = with_driver.into_iter().map(|backend| {
            let name = DeviceName { backend, index: 0 };
            Found::unavailable(name, format!("looking for it failed: {why}"))
        });
        let cpu = surefoot::device::discover::look(DeviceName::CPU);
        crashed.chain([cpu]).collect()
    })
}

fn table(found: &[Found]) -> String {
    let mut table = Table::new(["--device", "device", "memory", "dtypes"]);
    let mut unavailable = String::new();
    for device in found {
        let name = device.name.to_string();
        match (&device.info, &device.unavailable) {
            (Some(info), _) => table.row([
                name,
                format!("{}{}", info.label, kind_note(info.kind)),
                memory(info),
                info.dtypes.iter().map(|dtype| dtype.as_str()).collect::<Vec<_>>().join(" "),
            ]),
            (None, why) => {
                let why = why.as_deref().unwrap_or("it did not open");
                unavailable += &format!("{name}: not available, because {why}\n");
            }
        }
    }
    format!("{table}{unavailable}")
}

fn kind_note(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::SoftwareGpu => " (computes on the CPU)",
        DeviceKind::VirtualGpu => " (virtual)",
        _ => "",
    }
}

fn memory(info: &DeviceInfo) -> String {
    let size = match (info.memory_used, info.memory_total) {
        (Some(used), Some(total)) => format!("{} of {}", Bytes(used), Bytes(total)),
        (None, Some(total)) => Bytes(total).to_string(),
        _ => "unknown".to_owned(),
    };
    format!("{size}, {}", if info.unified_memory { "shared with the host" } else { "dedicated" })
}

fn not_in_this_build() -> String {
    let features = [("gpu", "gpu"), ("vulkan", "vulkan"), ("cuda", "cuda")];
    features
        .into_iter()
        .filter(|(name, _)| named(name).is_err())
        .map(|(name, feature)| format!("{name} (--features {feature})"))
        .collect::<Vec<_>>()
        .join(", ")
}
