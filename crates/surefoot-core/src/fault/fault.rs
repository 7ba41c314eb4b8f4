//! A fault: what failed, where, why, what had failed before it, and what to do.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::FaultKind;
use crate::recover::Rung;

/// Any error, as the guarded closures return it.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Something failed. Carries all that a person or the recovery ladder needs to go on.
///
/// Its `Display` is the whole chain of messages on one line; `source()` is the error that it was
/// made of, for callers that want its type. Two faults are equal if what they say is equal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
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
    /// What recovery did about it; none for the fault that ended the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Response>,
    /// The error that this fault was made of. Not written to files.
    #[serde(skip)]
    cause: Option<Arc<dyn Error + Send + Sync + 'static>>,
}

/// What recovery did about a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Response {
    /// The rung that was taken.
    pub rung: Rung,
    /// In how many parts the batch was run from then on.
    pub parts: usize,
    /// The device it was run on from then on.
    pub device: String,
}

impl Response {
    pub(crate) fn new(rung: Rung, parts: usize, device: impl Into<String>) -> Self {
        Self { rung, parts, device: device.into() }
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rung {
            Rung::Split => write!(f, "split into {}", self.parts),
            Rung::NextDevice => write!(f, "next device {}", self.device),
            other => write!(f, "{}", other.as_str().replace('_', " ")),
        }
    }
}

impl PartialEq for Fault {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.device == other.device
            && self.operation == other.operation
            && self.chain == other.chain
            && self.retryable == other.retryable
            && self.advice == other.advice
            && self.earlier == other.earlier
            && self.response == other.response
    }
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
            response: None,
            cause: None,
        }
    }

    /// A fault of `kind` with the texts of the errors behind it, outermost first.
    pub fn with_chain(kind: FaultKind, operation: impl Into<String>, chain: Vec<String>) -> Self {
        let mut fault = Self::new(kind, operation, String::new());
        // An error that wraps another often repeats its text: say it once.
        fault.chain = chain;
        fault.chain.dedup();
        fault
    }

    /// Keeps the error that this fault was made of; it becomes the fault's `source()`.
    #[must_use]
    pub fn caused_by(mut self, error: BoxError) -> Self {
        self.cause = Some(Arc::from(error));
        self
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

    /// Keeps the faults that led here.
    #[must_use]
    pub fn after(mut self, earlier: Vec<Fault>) -> Self {
        self.earlier = earlier;
        self
    }

    /// What recovery tried before this fault, in one line: "after 4 tries: reclaim, split into
    /// 2, 4". None if nothing was tried.
    pub fn tried(&self) -> Option<String> {
        let mut steps: Vec<String> = Vec::new();
        let mut was_split = false;
        for response in self.earlier.iter().filter_map(|fault| fault.response.as_ref()) {
            let is_split = response.rung == Rung::Split;
            steps.push(match is_split && was_split {
                true => response.parts.to_string(),
                false => response.to_string(),
            });
            was_split = is_split;
        }
        let tries = self.earlier.len() + 1;
        (!steps.is_empty()).then(|| format!("after {tries} tries: {}", steps.join(", ")))
    }

    /// The error at the bottom of the chain.
    pub fn root_cause(&self) -> &str {
        self.chain.last().map_or("", String::as_str)
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

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

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
            assert!(!fault.advice.is_empty(), "{kind} has no advice");
        }
        let retryable = |kind| Fault::new(kind, "op", "x").retryable;
        let callers = [
            FaultKind::ShapeMismatch,
            FaultKind::DataLoading,
            FaultKind::ModelLoading,
            FaultKind::NotDeviceRelated,
        ];
        for kind in FaultKind::ALL {
            assert_eq!(kind.is_callers(), callers.contains(&kind), "{kind}");
            let hopeless = callers.contains(&kind) || kind == FaultKind::StateLost;
            assert_eq!(retryable(kind), !hopeless, "{kind}");
        }
    }

    #[test]
    fn what_was_tried_is_one_line() {
        let answered = |rung, parts| {
            let mut fault = Fault::new(FaultKind::OutOfMemory, "step", "x");
            fault.response = Some(Response::new(rung, parts, "cpu"));
            fault
        };
        let earlier = vec![
            answered(Rung::Reclaim, 1),
            answered(Rung::Split, 2),
            answered(Rung::Split, 4),
            answered(Rung::NextDevice, 4),
        ];
        let fault = Fault::new(FaultKind::OutOfMemory, "step", "x");
        assert_eq!(fault.tried(), None);
        assert_eq!(
            fault.after(earlier).tried().as_deref(),
            Some("after 5 tries: reclaim, split into 2, 4, next device cpu")
        );
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
