//! Devices as far as the source shows them: a literal, a choice made at run time, or unknown.

/// A set of device types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places(u8);

impl Places {
    pub(crate) const CPU: Self = Self(1);
    pub(crate) const CUDA: Self = Self(2);
    pub(crate) const MPS: Self = Self(4);
    pub(crate) const META: Self = Self(8);
    pub(crate) const OTHER: Self = Self(16);
    pub(crate) const ANY: Self = Self(31);

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether something other than the CPU is among them.
    pub(crate) fn off_cpu(self) -> bool {
        self.0 & !Self::CPU.0 != 0
    }

    pub(crate) fn is_only(self, other: Self) -> bool {
        self == other
    }
}

/// Where something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Nothing can be said.
    Unknown,
    /// Written in the source, or the CPU where none is written.
    Literal { place: Places, index: Option<u8> },
    /// Decided at run time; the same symbol is the same decision.
    Chosen { symbol: u32, can: Places },
}

/// How two devices compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Apart {
    /// They are, or may well be, the same.
    No,
    /// They always differ.
    Always,
    /// They differ whenever the chosen one is not the CPU.
    WhenChosenIsNotCpu,
}

impl Device {
    pub(crate) const CPU: Self = Self::Literal { place: Places::CPU, index: None };

    /// Reads a device string; `None` if it is not one.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, Some(index.parse::<u8>().ok()?)),
            None => (text, None),
        };
        let place = match kind {
            "cpu" => Places::CPU,
            "cuda" => Places::CUDA,
            "mps" => Places::MPS,
            "meta" => Places::META,
            "xpu" | "hpu" | "npu" | "xla" | "mtia" | "privateuseone" => Places::OTHER,
            _ => return None,
        };
        Some(Self::Literal { place, index })
    }

    /// The types it can be of.
    pub(crate) fn can(self) -> Places {
        match self {
            Self::Unknown => Places::ANY,
            Self::Literal { place, .. } => place,
            Self::Chosen { can, .. } => can,
        }
    }

    pub(crate) fn is_known(self) -> bool {
        self != Self::Unknown
    }

    /// Whether it surely is of this one type.
    pub(crate) fn is(self, place: Places) -> bool {
        self.is_known() && self.can().is_only(place)
    }

    /// Whether the source shows that it can be of this type (a plain parameter shows nothing).
    pub(crate) fn visibly_can_be(self, place: Places) -> bool {
        self.is_known() && self.can() != Places::ANY && self.can().has(place)
    }

    /// Whether the two are seen to differ.
    pub(crate) fn apart(self, other: Self) -> Apart {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Apart::No,
            (Self::Literal { place: a, index: i }, Self::Literal { place: b, index: j }) => {
                let indices_differ = matches!((i, j), (Some(i), Some(j)) if i != j);
                if a != b || (a == Places::CUDA && indices_differ) {
                    Apart::Always
                } else {
                    Apart::No
                }
            }
            (Self::Chosen { can, .. }, Self::Literal { place, .. })
            | (Self::Literal { place, .. }, Self::Chosen { can, .. }) => {
                if !can.has(place) {
                    Apart::Always
                } else if place == Places::CPU && can.off_cpu() {
                    Apart::WhenChosenIsNotCpu
                } else {
                    Apart::No
                }
            }
            (Self::Chosen { .. }, Self::Chosen { .. }) => Apart::No,
        }
    }

    /// For messages.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Unknown => "an unknown device".to_owned(),
            Self::Literal { place, index } => {
                let name = match place {
                    Places::CPU => "the CPU",
                    Places::CUDA => "cuda",
                    Places::MPS => "mps",
                    Places::META => "meta",
                    _ => "another device",
                };
                match index {
                    Some(index) => format!("{name}:{index}"),
                    None => name.to_owned(),
                }
            }
            Self::Chosen { .. } => "the device chosen at run time".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Device {
        Device::from_text(text).expect("a device")
    }

    #[test]
    fn literals_differ_by_type_and_by_cuda_index() {
        assert_eq!(read("cuda").apart(read("cpu")), Apart::Always);
        assert_eq!(read("cuda:0").apart(read("cuda:1")), Apart::Always);
        assert_eq!(read("cuda").apart(read("cuda:1")), Apart::No);
        assert_eq!(read("mps").apart(read("mps:0")), Apart::No);
    }

    #[test]
    fn a_choice_differs_from_the_cpu_only_when_it_is_not_the_cpu() {
        let choice = Device::Chosen { symbol: 1, can: Places::CUDA.with(Places::CPU) };
        assert_eq!(choice.apart(Device::CPU), Apart::WhenChosenIsNotCpu);
        assert_eq!(choice.apart(read("cuda")), Apart::No);
        assert_eq!(choice.apart(read("mps")), Apart::Always);
        assert_eq!(choice.apart(Device::Unknown), Apart::No);
    }

    #[test]
    fn other_strings_are_not_devices() {
        for text in ["", "gpu", "cuda:", "cuda:x", "cudnn", "cpu:1:2"] {
            assert_eq!(Device::from_text(text), None, "{text}");
        }
    }
}
