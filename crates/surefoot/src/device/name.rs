//! What devices are called on the command line and in the journal.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A way to reach hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// Apple's GPUs.
    Metal,
    /// NVIDIA's own API.
    Cuda,
    /// wgpu with the SPIR-V compiler.
    Vulkan,
    /// wgpu with WGSL.
    Gpu,
    /// The processor.
    Cpu,
}

impl Backend {
    /// Every backend, in the order in which `auto` prefers them.
    pub const PREFERRED: [Self; 5] = [Self::Metal, Self::Cuda, Self::Vulkan, Self::Gpu, Self::Cpu];

    /// The name without an index.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Metal => "metal",
            Self::Cuda => "cuda",
            Self::Vulkan => "vulkan",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
        }
    }

    /// Whether this build can reach it.
    pub fn is_in_this_build(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Metal => cfg!(target_os = "macos"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Vulkan => cfg!(all(feature = "vulkan", not(target_os = "macos"))),
            // With `vulkan` on, wgpu compiles to SPIR-V and the same device is called `vulkan`.
            Self::Gpu => {
                cfg!(all(feature = "gpu", not(feature = "vulkan"), not(target_os = "macos")))
            }
        }
    }

    /// What would add it to a build that lacks it.
    fn remedy(self) -> &'static str {
        match self {
            Self::Metal => "metal is part of every build on macOS and of no other",
            Self::Cuda => "build with `--features cuda` (downloads an LLVM bundle)",
            Self::Vulkan => "build with `--features vulkan`",
            Self::Gpu => "build with `--features gpu`",
            Self::Cpu => "the CPU is part of every build",
        }
    }
}

/// One device, as `--device` names it: `cpu`, `gpu`, `gpu:1`, `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DeviceName {
    /// How it is reached.
    pub backend: Backend,
    /// Which one of that backend's devices.
    pub index: usize,
}

impl DeviceName {
    /// The processor.
    pub const CPU: Self = Self { backend: Backend::Cpu, index: 0 };
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => f.pad(self.backend.as_str()),
            index => f.pad(&format!("{}:{index}", self.backend.as_str())),
        }
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for DeviceName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

/// What `--device` can say: one device, several in order of preference, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Selector {
    /// The best device that is there, then the others.
    #[default]
    Auto,
    /// These devices, in this order.
    Chain(Vec<DeviceName>),
}

impl Selector {
    /// Just this device.
    pub fn only(name: DeviceName) -> Self {
        Self::Chain(vec![name])
    }
}

impl FromStr for Selector {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let mut chain: Vec<DeviceName> = Vec::new();
        for part in text.split(',') {
            let name = part.trim().parse()?;
            if !chain.contains(&name) {
                chain.push(name);
            }
        }
        Ok(Self::Chain(chain))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Chain(names) => {
                f.write_str(&names.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// A device name that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No device is called that anywhere.
    #[error("'{0}' is not the name of a device; this build knows {names}, and auto", names = known_names())]
    Unknown(String),
    /// Another build has it.
    #[error("'{name}' is not in this build, which has {names}: {remedy}", names = known_names())]
    NotInBuild {
        /// What was asked for.
        name: String,
        /// What would add it.
        remedy: &'static str,
    },
}

fn known_names() -> String {
    Backend::PREFERRED
        .into_iter()
        .filter(|backend| backend.is_in_this_build())
        .map(|backend| match backend {
            Backend::Metal => "metal (also mps and gpu)",
            Backend::Vulkan => "vulkan (also gpu)",
            other => other.as_str(),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let unknown = || NameError::Unknown(text.to_owned());
        let lower = text.to_ascii_lowercase();
        let (word, index) = match lower.split_once(':') {
            Some((word, index)) => (word, index.parse().map_err(|_| unknown())?),
            None => (lower.as_str(), 0),
        };
        let backend = match word {
            "cpu" if index == 0 => Backend::Cpu,
            "metal" | "mps" => Backend::Metal,
            "cuda" => Backend::Cuda,
            "vulkan" => Backend::Vulkan,
            // `gpu` means the wgpu device that this build has, whatever it is called there.
            "gpu" => [Backend::Metal, Backend::Vulkan]
                .into_iter()
                .find(|backend| backend.is_in_this_build())
                .unwrap_or(Backend::Gpu),
            _ => return Err(unknown()),
        };
        if !backend.is_in_this_build() {
            return Err(NameError::NotInBuild { name: text.to_owned(), remedy: backend.remedy() });
        }
        Ok(Self { backend, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_cpu_is_always_there_and_has_one_name() {
        assert_eq!("cpu".parse(), Ok(DeviceName::CPU));
        assert_eq!("CPU".parse(), Ok(DeviceName::CPU));
        assert!(matches!("cpu:1".parse::<DeviceName>(), Err(NameError::Unknown(_))));
    }

    #[test]
    fn an_unknown_name_says_which_ones_there_are() {
        let message = "tpu".parse::<DeviceName>().unwrap_err().to_string();
        assert!(message.contains("'tpu'") && message.contains("cpu"), "{message}");
        for odd in ["", ":", "cpu:", "gpu:x", "gpu:-1", "cuda:99999999999999999999999"] {
            assert!(odd.parse::<DeviceName>().is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_name_of_another_build_says_what_would_add_it() {
        for (name, feature) in [("cuda", "cuda"), ("vulkan", "vulkan"), ("gpu", "gpu")] {
            if let Err(error) = name.parse::<DeviceName>() {
                let message = error.to_string();
                assert!(message.contains(&format!("--features {feature}")), "{message}");
            }
        }
        #[cfg(not(target_os = "macos"))]
        assert!("mps".parse::<DeviceName>().unwrap_err().to_string().contains("macOS"));
    }

    #[test]
    fn a_chain_keeps_its_order_and_drops_repeats() {
        assert_eq!("cpu, cpu".parse(), Ok(Selector::only(DeviceName::CPU)));
        assert_eq!("auto".parse(), Ok(Selector::Auto));
        assert!("cpu,nothing".parse::<Selector>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_a_clear_error(text in ".{0,20}") {
            match text.parse::<DeviceName>() {
                Ok(name) => prop_assert_eq!(name.to_string().parse::<DeviceName>(), Ok(name)),
                Err(error) => prop_assert!(error.to_string().contains(&text)),
            }
        }
    }
}
