//! A fault with its story: what failed, where, why, what had failed before, and what to do.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::FaultKind;

/// Any error, as the guarded closures return it.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Something failed. Carries all that a person or the recovery ladder needs to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Which recovery would help.
    pub kind: FaultKind,
    /// The device it happened on, as it is called in `--device`.
    pub device: Option<String>,
    /// The operation that failed, as the caller named it.
    pub operation: String,
    /// The original errors, outermost first; the last one is the root cause.
    pub chain: Vec<String>,
    /// Whether the same work can succeed if it is tried again, here or elsewhere.
    pub retryable: bool,
    /// What to change.
    pub advice: Vec<String>,
    /// Faults that came before this one in the same piece of work, oldest first.
    pub earlier: Vec<Fault>,
}

impl Fault {
    /// A fault of `kind` in `operation`, with `message` as its root cause.
    pub fn new(kind: FaultKind, operation: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            device: None,
            operation: operation.into(),
            chain: vec![message.into()],
            retryable: kind.is_retryable(),
            advice: kind.advice().iter().map(|&line| line.to_owned()).collect(),
            earlier: Vec::new(),
        }
    }

    /// Names the device it happened on.
    #[must_use]
    pub fn on(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Names the operation, where the error itself could not know it.
    #[must_use]
    pub fn during(mut self, operation: impl Into<String>) -> Self {
        self.operation = operation.into();
        self
    }

    /// Puts `context` above the errors already there.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.chain.insert(0, context.into());
        self
    }

    /// Puts advice that fits this very fault before the general advice for its kind.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.insert(0, advice.into());
        self
    }

    /// Keeps the story of the faults that led here.
    #[must_use]
    pub fn after(mut self, earlier: Vec<Fault>) -> Self {
        self.earlier = earlier;
        self
    }

    /// The error at the bottom of the chain.
    pub fn root_cause(&self) -> &str {
        self.chain.last().map_or("", String::as_str)
    }
}

impl FaultKind {
    /// Whether trying again, here or on another device, can help. A caller's own mistake and a
    /// broken file stay broken.
    pub fn is_retryable(self) -> bool {
        !matches!(
            self,
            Self::ShapeMismatch | Self::DataLoading | Self::ModelLoading | Self::NotDeviceRelated
        )
    }

    /// Whether this is the caller's to mend: reported at once, never retried, never held
    /// against a device.
    pub fn is_callers(self) -> bool {
        !self.is_retryable()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.kind, self.operation)?;
        if let Some(device) = &self.device {
            write!(f, " on {device}")?;
        }
        for message in &self.chain {
            write!(f, ": {}", message.lines().next().unwrap_or_default())?;
        }
        Ok(())
    }
}

impl Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_from_what_to_why() {
        let fault = Fault::new(FaultKind::OutOfMemory, "forward", "asked for 4 GiB")
            .on("gpu")
            .context("batch 64 does not fit");
        assert_eq!(
            fault.to_string(),
            "out_of_memory in forward on gpu: batch 64 does not fit: asked for 4 GiB"
        );
        assert_eq!(fault.root_cause(), "asked for 4 GiB");
    }

    #[test]
    fn a_callers_mistake_is_not_retryable_and_a_device_fault_is() {
        for kind in FaultKind::ALL {
            let fault = Fault::new(kind, "op", "x");
            assert_eq!(fault.retryable, !kind.is_callers(), "{kind}");
            assert!(!fault.advice.is_empty(), "{kind} has no advice");
        }
        assert!(FaultKind::ShapeMismatch.is_callers());
        assert!(FaultKind::OutOfMemory.is_retryable());
    }

    #[test]
    fn a_fault_survives_json() {
        let fault = Fault::new(FaultKind::DeviceLost, "step", "gone")
            .on("gpu")
            .after(vec![Fault::new(FaultKind::OutOfMemory, "step", "first")]);
        let text = serde_json::to_string(&fault).unwrap();
        assert_eq!(serde_json::from_str::<Fault>(&text).unwrap(), fault);
    }
}
