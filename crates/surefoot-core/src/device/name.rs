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

/// What `--device` can say: one device, several in order of preference, several that a model is laid over, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Selector {
    /// The best device that is there, then the others.
    #[default]
    Auto,
    /// These devices, in this order.
    Chain(Vec<DeviceName>),
    /// All of these devices, for the parts of one model: `gpu:0+gpu:1`. Those that are left take over from one that is lost.
    Together {
        /// The devices.
        names: Vec<DeviceName>,
        /// How many parts each gets, if that is said (`gpu=20+cpu=12`); else a plan decides.
        parts: Option<Vec<usize>>,
    },
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
        let together = text.contains('+');
        if together && text.contains(',') {
            return Err(NameError::Mixed(text.to_owned()));
        }
        if together {
            return parse_together(text);
        }
        let mut names: Vec<DeviceName> = Vec::new();
        for part in text.split(',') {
            let name = part.trim().parse()?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(Self::Chain(names))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Chain(names) => f.write_str(&joined(names.iter(), ",")),
            Self::Together { names, parts: None } => f.write_str(&joined(names.iter(), "+")),
            Self::Together { names, parts: Some(parts) } => {
                let each = names.iter().zip(parts).map(|(name, count)| format!("{name}={count}"));
                f.write_str(&joined(each, "+"))
            }
        }
    }
}

fn joined(names: impl Iterator<Item = impl fmt::Display>, separator: &str) -> String {
    names.map(|name| name.to_string()).collect::<Vec<_>>().join(separator)
}

/// `gpu+cpu`, or `gpu=20+cpu=12`.
fn parse_together(text: &str) -> Result<Selector, NameError> {
    let wrong = || NameError::Parts(text.to_owned());
    let (mut names, mut parts): (Vec<DeviceName>, Vec<usize>) = (Vec::new(), Vec::new());
    for part in text.split('+') {
        let (name, count) = match part.split_once('=') {
            Some((name, count)) => {
                (name, Some(count.trim().parse::<usize>().map_err(|_| wrong())?))
            }
            None => (part, None),
        };
        let name = name.trim().parse()?;
        if names.contains(&name) {
            return Err(wrong());
        }
        names.push(name);
        parts.extend(count);
    }
    let parts = match parts.len() {
        0 => None,
        count if count == names.len() && parts.iter().any(|part| *part > 0) => Some(parts),
        _ => return Err(wrong()),
    };
    Ok(Selector::Together { names, parts })
}

/// A device name that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No device is called that anywhere.
    #[error(
        "'{0}' is not the name of a device; write cpu, gpu, gpu:1, cuda, vulkan, metal (or mps), xpu, several in order of preference (gpu,cpu), several to lay a model over (gpu:0+gpu:1), or auto"
    )]
    Unknown(String),
    /// Devices to be used together, with numbers that can't be used.
    #[error(
        "'{0}' can't be used: name each device once, and give either all of them a number of blocks (gpu=20+cpu=12) or none (gpu+cpu)"
    )]
    Parts(String),
    /// An order of preference and devices to be used together in one.
    #[error(
        "'{0}' has both '+' and ',': write gpu:0+gpu:1 to lay a model over devices, or gpu,cpu for an order of preference; if all devices of a '+' are lost, the CPU takes over anyway"
    )]
    Mixed(String),
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

    #[test]
    fn a_plus_lays_work_over_devices_and_does_not_mix_with_an_order_of_preference() {
        let second = DeviceName { backend: Backend::Gpu, index: 1 };
        let names = vec![DeviceName { index: 0, ..second }, second];
        for (text, parts) in [("gpu:0 + gpu:1", None), ("gpu=20+gpu:1=12", Some(vec![20, 12]))] {
            let both = Selector::Together { names: names.clone(), parts };
            assert_eq!(text.parse(), Ok(both.clone()));
            assert_eq!(both.to_string().parse(), Ok(both));
        }
        for wrong in ["cpu+cpu", "gpu=3+cpu", "gpu=x+cpu=1", "gpu=0+cpu=0", "gpu=-1+cpu=4"] {
            assert!(matches!(wrong.parse::<Selector>(), Err(NameError::Parts(_))), "{wrong}");
        }
        assert!(matches!("gpu+cpu,cuda".parse::<Selector>(), Err(NameError::Mixed(_))));
        assert!("gpu+".parse::<Selector>().is_err());
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
