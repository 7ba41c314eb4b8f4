//! The machine that was measured, so that another one's figures are not taken for this one's.

use serde::{Deserialize, Serialize};
use surefoot::device::memory::host_memory;
use surefoot::device::{DeviceKind, DeviceName, OpenDevice};

/// A machine, as far as its speed depends on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The operating system.
    pub os: String,
    /// The processor's architecture.
    pub arch: String,
    /// Threads that run at once.
    pub cores: usize,
    /// All of its memory in bytes.
    pub memory: u64,
    /// The devices that were measured.
    pub devices: Vec<Device>,
}

/// A device of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// What it is called in `--device`.
    pub name: DeviceName,
    /// The hardware's own name.
    pub label: String,
    /// What sort of hardware it is.
    pub kind: DeviceKind,
    /// The API it is reached through, with its driver.
    pub driver: String,
}

impl Machine {
    /// This machine with these devices.
    pub fn here<'a>(devices: impl IntoIterator<Item = &'a OpenDevice>) -> Self {
        let devices = devices.into_iter().map(|device| Device {
            name: device.name(),
            label: device.info.label.clone(),
            kind: device.info.kind,
            driver: device.info.driver.clone(),
        });
        Self {
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: host_memory().total,
            devices: devices.collect(),
        }
    }

    /// What makes `other` another machine. Its memory may differ by what the system keeps, and a
    /// device that is only on one side is not compared.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut differ = |what: &str, mine: String, theirs: String| {
            if mine != theirs {
                found.push(format!("{what}: {theirs} then, {mine} now"));
            }
        };
        differ(
            "system",
            format!("{} {}", self.os, self.arch),
            format!("{} {}", other.os, other.arch),
        );
        differ("cores", self.cores.to_string(), other.cores.to_string());
        for device in &self.devices {
            if let Some(theirs) = other.devices.iter().find(|theirs| theirs.name == device.name) {
                differ(&device.name.to_string(), device.label.clone(), theirs.label.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            os: "linux".into(),
            arch: "x86_64".into(),
            cores: 2,
            memory: 1 << 34,
            devices: vec![Device {
                name: DeviceName::CPU,
                label: "A, 2 cores".into(),
                kind: DeviceKind::Cpu,
                driver: "flex".into(),
            }],
        }
    }

    #[test]
    fn a_machine_is_itself_even_with_other_memory_left() {
        let other = Machine { memory: 1 << 33, ..machine() };
        assert!(machine().differences(&other).is_empty());
    }

    #[test]
    fn another_processor_or_count_of_cores_is_another_machine() {
        let mut other = machine();
        other.devices[0].label = "B, 4 cores".into();
        other.cores = 4;
        let found = machine().differences(&other);
        assert_eq!(found, ["cores: 4 then, 2 now", "cpu: B, 4 cores then, A, 2 cores now"]);
    }
}
