//! Which rungs of the ladder may be used, in what order, for which fault.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fault::FaultKind;

/// One way to go on after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rung {
    /// Return unused memory, place the inputs anew and try once more.
    Reclaim,
    /// Run the batch in twice as many parts; the result stays the same.
    Split,
    /// Recompute activations in the backward pass instead of keeping them.
    Checkpoint,
    /// Compute in another precision: a lower one for memory, a higher one for support or NaN.
    Precision,
    /// Keep weights outside the device and bring them in block by block.
    Stream,
    /// Run this segment on the CPU and bring its result back.
    CpuSegment,
    /// Go on with the next device of the chain.
    NextDevice,
}

impl Rung {
    /// Every rung, in the order of the ladder.
    pub const ALL: [Self; 7] = [
        Self::Reclaim,
        Self::Split,
        Self::Checkpoint,
        Self::Precision,
        Self::Stream,
        Self::CpuSegment,
        Self::NextDevice,
    ];

    /// Its name in the journal and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reclaim => "reclaim",
            Self::Split => "split",
            Self::Checkpoint => "checkpoint",
            Self::Precision => "precision",
            Self::Stream => "stream",
            Self::CpuSegment => "cpu_segment",
            Self::NextDevice => "next_device",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that names no rung.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a recovery step; the steps are {names}", names = Rung::ALL.map(Rung::as_str).join(", "))]
pub struct UnknownRung(String);

impl FromStr for Rung {
    type Err = UnknownRung;

    fn from_str(text: &str) -> Result<Self, UnknownRung> {
        Self::ALL
            .into_iter()
            .find(|rung| rung.as_str() == text)
            .ok_or_else(|| UnknownRung(text.to_owned()))
    }
}

/// What recovery may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    ladders: BTreeMap<FaultKind, Vec<Rung>>,
    max_tries: u32,
    verify_recovery: bool,
}

impl Default for Policy {
    /// Every rung but lower precision, which changes the result and has to be allowed.
    fn default() -> Self {
        let ladders = FaultKind::ALL.into_iter().map(|kind| (kind, default_ladder(kind)));
        Self { ladders: ladders.collect(), max_tries: 32, verify_recovery: false }
    }
}

fn default_ladder(kind: FaultKind) -> Vec<Rung> {
    use Rung::{Checkpoint, CpuSegment, NextDevice, Precision, Reclaim, Split, Stream};
    match kind {
        FaultKind::OutOfMemory => {
            vec![Reclaim, Split, Checkpoint, Stream, CpuSegment, NextDevice]
        }
        // Placing the inputs anew repairs what had strayed; more tries would not.
        FaultKind::DeviceMismatch | FaultKind::DtypeMismatch => vec![Reclaim],
        FaultKind::PlaceholderStorage => vec![Reclaim, NextDevice],
        FaultKind::UnsupportedDtype => vec![Precision, CpuSegment, NextDevice],
        FaultKind::UnsupportedOp | FaultKind::KernelCompile => vec![CpuSegment, NextDevice],
        FaultKind::CommandBuffer => vec![Reclaim, NextDevice],
        FaultKind::DeviceLost | FaultKind::DriverOrInit => vec![NextDevice],
        // fp32 has the range that fp16 lacks; if that doesn't help, the numbers are wrong.
        FaultKind::Numeric => vec![Precision],
        FaultKind::ShapeMismatch
        | FaultKind::DataLoading
        | FaultKind::ModelLoading
        | FaultKind::StateLost
        | FaultKind::NotDeviceRelated => vec![],
    }
}

impl Policy {
    /// No recovery: the first fault goes to the caller (`--on-fault fail`).
    pub fn fail() -> Self {
        let mut policy = Self::default();
        policy.ladders.values_mut().for_each(Vec::clear);
        policy
    }

    /// Takes `rung` out of every ladder.
    #[must_use]
    pub fn forbid(mut self, rung: Rung) -> Self {
        self.ladders.values_mut().for_each(|ladder| ladder.retain(|other| *other != rung));
        self
    }

    /// Stays on the device that was chosen (`--no-fallback`).
    #[must_use]
    pub fn no_fallback(self) -> Self {
        self.forbid(Rung::NextDevice).forbid(Rung::CpuSegment)
    }

    /// Lets an out-of-memory be answered by a lower precision, before weights are streamed.
    #[must_use]
    pub fn allow_lower_precision(mut self) -> Self {
        let ladder = self.ladders.entry(FaultKind::OutOfMemory).or_default();
        if !ladder.contains(&Rung::Precision) {
            let at = ladder.iter().position(|rung| *rung > Rung::Precision).unwrap_or(ladder.len());
            ladder.insert(at, Rung::Precision);
        }
        self
    }

    /// Sets the rungs for one kind of fault, in the order to try them. A caller's mistake keeps
    /// none: it is never retried.
    #[must_use]
    pub fn ladder(mut self, kind: FaultKind, rungs: impl Into<Vec<Rung>>) -> Self {
        if kind.is_retryable() {
            self.ladders.insert(kind, rungs.into());
        }
        self
    }

    /// Bounds the tries of one piece of work, over all rungs and devices.
    #[must_use]
    pub fn max_tries(mut self, tries: u32) -> Self {
        self.max_tries = tries.max(1);
        self
    }

    /// After a recovery, runs the work on the CPU as well and compares the results.
    #[must_use]
    pub fn verify_recovery(mut self, verify: bool) -> Self {
        self.verify_recovery = verify;
        self
    }

    /// The rungs for a kind of fault, in order.
    pub fn rungs(&self, kind: FaultKind) -> &[Rung] {
        self.ladders.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// Whether any fault may move work to another device.
    pub fn allows(&self, rung: Rung) -> bool {
        self.ladders.values().any(|ladder| ladder.contains(&rung))
    }

    pub(crate) fn tries(&self) -> u32 {
        self.max_tries
    }

    pub(crate) fn verifies(&self) -> bool {
        self.verify_recovery
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_mistake_has_no_rungs_and_can_be_given_none() {
        let policy = Policy::default().ladder(FaultKind::ShapeMismatch, [Rung::Reclaim]);
        for kind in FaultKind::ALL {
            assert_eq!(policy.rungs(kind).is_empty(), !kind.is_retryable(), "{kind}");
        }
    }

    #[test]
    fn forbidden_rungs_are_gone_from_every_ladder() {
        let policy = Policy::default().no_fallback();
        assert!(!policy.allows(Rung::NextDevice) && !policy.allows(Rung::CpuSegment));
        assert!(policy.allows(Rung::Split));
        assert!(FaultKind::ALL.iter().all(|kind| Policy::fail().rungs(*kind).is_empty()));
    }

    #[test]
    fn lower_precision_has_to_be_allowed_and_comes_before_streaming() {
        assert!(!Policy::default().rungs(FaultKind::OutOfMemory).contains(&Rung::Precision));
        let policy = Policy::default().allow_lower_precision().allow_lower_precision();
        let ladder = policy.rungs(FaultKind::OutOfMemory);
        let at = |rung| ladder.iter().position(|other| *other == rung).unwrap();
        assert!(
            at(Rung::Checkpoint) < at(Rung::Precision) && at(Rung::Precision) < at(Rung::Stream)
        );
        assert_eq!(ladder.iter().filter(|rung| **rung == Rung::Precision).count(), 1);
    }

    #[test]
    fn rungs_read_as_they_are_written() {
        for rung in Rung::ALL {
            assert_eq!(rung.as_str().parse(), Ok(rung));
        }
        assert!("retry".parse::<Rung>().unwrap_err().to_string().contains("next_device"));
    }
}
