//! What devices are called on the command line and in the journal.
//!
//! Parsing is about spelling only. Which of these devices a build can reach, and what an alias
//! such as `gpu` stands for there, the engine says ([`crate::engine::Engine::resolve`]).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A way to reach hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// Apple's GPUs.
    Metal,
    /// NVIDIA's own API.
    Cuda,
    /// wgpu with the SPIR-V compiler.
    Vulkan,
    /// wgpu with WGSL.
    Gpu,
    /// Intel's GPUs, as PyTorch reaches them.
    Xpu,
    /// The CPU.
    Cpu,
}

impl Backend {
    /// Every backend, in the order in which `auto` prefers them.
    pub const PREFERRED: [Self; 6] =
        [Self::Metal, Self::Cuda, Self::Vulkan, Self::Gpu, Self::Xpu, Self::Cpu];

    /// The name without an index.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Metal => "metal",
            Self::Cuda => "cuda",
            Self::Vulkan => "vulkan",
            Self::Gpu => "gpu",
            Self::Xpu => "xpu",
            Self::Cpu => "cpu",
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
    /// The CPU.
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
#[non_exhaustive]
pub enum NameError {
    /// No device is called that anywhere.
    #[error(
        "'{0}' is not the name of a device; write cpu, gpu, gpu:1, cuda, vulkan, metal (or mps), xpu, several with commas, or auto"
    )]
    Unknown(String),
    /// Another build has it.
    #[error("'{name}' is not in this build, which has {available}: {remedy}")]
    NotInBuild {
        /// What was asked for.
        name: String,
        /// What this build has.
        available: String,
        /// What would add it.
        remedy: String,
    },
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
            "gpu" => Backend::Gpu,
            "xpu" => Backend::Xpu,
            _ => return Err(unknown()),
        };
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
