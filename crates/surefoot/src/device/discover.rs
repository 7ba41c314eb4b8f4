//! Which devices are there.
//!
//! Finding GPUs loads their drivers, and a driver can crash the process that loads it. So a
//! program lists them in a child process (see [`supervisor`](super::supervisor)); the functions
//! here run in the process that calls them.

use serde::{Deserialize, Serialize};

use super::{Backend, DeviceInfo, DeviceKind, DeviceName, is_in_build, open};

/// A device of this build: usable, or why not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// What it is called in `--device`.
    pub name: DeviceName,
    /// What it is, if it could be opened.
    pub info: Option<DeviceInfo>,
    /// Why it is not available, if it couldn't.
    pub unavailable: Option<String>,
}

impl Found {
    /// A device that can't be used, and why.
    pub fn unavailable(name: DeviceName, because: impl Into<String>) -> Self {
        Self { name, info: None, unavailable: Some(because.into()) }
    }

    /// Whether `auto` may choose it: it is there, and it is no imitation of a GPU on the
    /// processor, which is slower than using the CPU.
    pub fn is_worth_choosing(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.kind != DeviceKind::SoftwareGpu)
    }
}

/// Opens every device that this build can reach, in order of preference. Each backend that is
/// in the build has at least one entry, so that an absent driver is seen.
pub fn discover() -> Vec<Found> {
    Backend::PREFERRED
        .into_iter()
        .filter(|backend| is_in_build(*backend))
        .flat_map(|backend| {
            (0..count(backend).max(1)).map(move |index| look(DeviceName { backend, index }))
        })
        .collect()
}

/// Opens one device.
pub fn look(name: DeviceName) -> Found {
    match open(name) {
        Ok(device) => Found { name, info: Some(device.info.clone()), unavailable: None },
        Err(fault) => Found::unavailable(name, fault.chain[1..].join(": ")),
    }
}

/// Why there is no device of that number, if there is none: how many there are. Opens no device, but loads its driver.
pub fn missing(name: DeviceName) -> Option<String> {
    let named = |index: usize| DeviceName { index, ..name };
    match count(name.backend) {
        found if name.index < found => None,
        0 => Some(format!("there is no {}", named(0))),
        1 => Some(format!("there is one such device, {}", named(0))),
        found => {
            Some(format!("there are {found} such devices, {} to {}", named(0), named(found - 1)))
        }
    }
}

fn count(backend: Backend) -> usize {
    let counted = crate::fault::catch(|| match backend {
        Backend::Cpu => 1,
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        Backend::Metal | Backend::Vulkan | Backend::Gpu => super::wgpu::count(),
        #[cfg(feature = "cuda")]
        Backend::Cuda => super::cuda::count(),
        #[allow(unreachable_patterns)]
        _ => 0,
    });
    counted.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_found_last_and_is_usable() {
        let found = discover();
        let cpu = found.last().unwrap();
        assert_eq!(cpu.name, DeviceName::CPU);
        assert!(cpu.is_worth_choosing());
    }

    #[test]
    fn a_device_that_is_not_there_is_told_with_those_that_are() {
        assert_eq!(missing(DeviceName::CPU), None);
        let second = DeviceName { index: 1, ..DeviceName::CPU };
        assert_eq!(missing(second).as_deref(), Some("there is one such device, cpu"));
    }

    #[test]
    fn what_was_found_survives_json() {
        let found = discover();
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Found>>(&text).unwrap(), found);
    }
}
