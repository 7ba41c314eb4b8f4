//! The machine that was measured, so that results of different machines are not compared.

use serde::{Deserialize, Serialize};
use surefoot::device::memory::host_memory;
use surefoot::device::{DeviceKind, DeviceName, OpenDevice};

/// The properties of a machine that its speed depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The operating system.
    pub os: String,
    /// The processor's architecture.
    pub arch: String,
    /// Hardware threads.
    pub cores: usize,
    /// Main memory in bytes.
    pub memory: u64,
    /// The devices that were measured.
    pub devices: Vec<Device>,
}

/// A device of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its name in `--device`.
    pub name: DeviceName,
    /// The name of the hardware.
    pub label: String,
    /// The kind of hardware.
    pub kind: DeviceKind,
    /// The API and driver that it is used through.
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

    /// In what `other` differs from this machine. Memory is not compared, because the total depends
    /// on what the system reserves; nor is a device that only one of them has.
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
    fn a_different_amount_of_memory_is_not_a_different_machine() {
        let other = Machine { memory: 1 << 33, ..machine() };
        assert!(machine().differences(&other).is_empty());
    }

    #[test]
    fn another_processor_or_number_of_cores_is_a_different_machine() {
        let mut other = machine();
        other.devices[0].label = "B, 4 cores".into();
        other.cores = 4;
        let found = machine().differences(&other);
        assert_eq!(found, ["cores: 4 then, 2 now", "cpu: B, 4 cores then, A, 2 cores now"]);
    }
}
