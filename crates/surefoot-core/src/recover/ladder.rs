//! The state of one descent: which rungs were used, and which is next.

use super::{Policy, Rung};
use crate::fault::Fault;

/// How the next try differs from the plain one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecoveryState {
    /// In how many parts the batch is run.
    pub(super) parts: usize,
    /// Activations are recomputed.
    pub(super) checkpointing: bool,
    /// Weights are streamed.
    pub(super) streaming: bool,
    /// The segment runs on the CPU.
    pub(super) on_cpu: bool,
    /// The devices that the run has left, one bit for each place of the chain.
    pub(super) left: u64,
}

/// What the work and the chain allow beyond the policy.
#[derive(Clone, Debug, Default)]
pub(super) struct Abilities {
    /// Rungs that the work can take.
    pub(super) rungs: Vec<Rung>,
    /// The most parts it can be split into.
    pub(super) max_parts: usize,
    /// Whether another precision is left to try, for this fault.
    pub(super) other_precision: bool,
    /// Whether a usable device is left.
    pub(super) next_device: bool,
}

/// One descent.
#[derive(Debug)]
pub(super) struct Ladder<'p> {
    policy: &'p Policy,
    tries: u32,
    reclaimed: bool,
    pub(super) state: RecoveryState,
    used: Vec<Rung>,
}

impl<'p> Ladder<'p> {
    /// At the top, with the batch already in `parts` if experience says so.
    pub(super) fn new(policy: &'p Policy, parts: usize) -> Self {
        Self {
            policy,
            tries: 1,
            reclaimed: false,
            state: RecoveryState {
                parts,
                checkpointing: false,
                streaming: false,
                on_cpu: false,
                left: 0,
            },
            used: Vec::new(),
        }
    }

    /// The rungs taken so far, in order.
    pub(super) fn used(&self) -> &[Rung] {
        &self.used
    }

    /// Which try this is, from 1.
    pub(super) fn attempt(&self) -> u32 {
        self.tries
    }

    /// Takes the next rung for `fault`, if one is left.
    pub(super) fn descend(&mut self, fault: &Fault, can: &Abilities) -> Option<Rung> {
        if !fault.retryable || self.tries >= self.policy.tries() {
            return None;
        }
        let rung = *self.policy.rungs(fault.kind).iter().find(|rung| self.is_left(**rung, can))?;
        self.take(rung, can);
        Some(rung)
    }

    fn is_left(&self, rung: Rung, can: &Abilities) -> bool {
        let able = can.rungs.contains(&rung);
        match rung {
            // Exactly once per device: a second time would find what the first one found.
            Rung::Reclaim => !self.reclaimed,
            Rung::Split => able && self.state.parts < can.max_parts,
            Rung::Checkpoint => able && !self.state.checkpointing,
            Rung::Precision => able && can.other_precision,
            Rung::Stream => able && !self.state.streaming,
            Rung::CpuSegment => able && !self.state.on_cpu,
            Rung::NextDevice => can.next_device,
        }
    }

    fn take(&mut self, rung: Rung, can: &Abilities) {
        self.tries += 1;
        self.used.push(rung);
        match rung {
            Rung::Reclaim => self.reclaimed = true,
            Rung::Split => self.state.parts = (self.state.parts * 2).min(can.max_parts),
            Rung::Checkpoint => self.state.checkpointing = true,
            // The guard keeps the precision.
            Rung::Precision => {}
            Rung::Stream => self.state.streaming = true,
            Rung::CpuSegment => self.state.on_cpu = true,
            // Another device, another memory: its first chance is a whole one.
            Rung::NextDevice => self.reclaimed = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;
    use proptest::prelude::*;

    fn fault(kind: FaultKind) -> Fault {
        Fault::new(kind, "op", "x")
    }

    fn able() -> Abilities {
        Abilities {
            rungs: Rung::ALL.to_vec(),
            max_parts: 8,
            other_precision: false,
            next_device: true,
        }
    }

    #[test]
    fn out_of_memory_goes_down_the_whole_ladder_in_order() {
        let policy = Policy::default();
        let mut ladder = Ladder::new(&policy, 1);
        let mut can = able();
        let mut taken = Vec::new();
        while let Some(rung) = ladder.descend(&fault(FaultKind::OutOfMemory), &can) {
            taken.push(rung);
            can.next_device &= rung != Rung::NextDevice;
        }
        assert_eq!(
            taken,
            [
                Rung::Reclaim,
                Rung::Split,
                Rung::Split,
                Rung::Split,
                Rung::Checkpoint,
                Rung::Stream,
                Rung::CpuSegment,
                Rung::NextDevice,
                Rung::Reclaim,
            ]
        );
        assert_eq!(ladder.state.parts, 8);
    }

    #[test]
    fn a_lost_device_is_left_at_once() {
        let policy = Policy::default();
        let mut ladder = Ladder::new(&policy, 1);
        let rung = ladder.descend(&fault(FaultKind::DeviceLost), &able());
        assert_eq!(rung, Some(Rung::NextDevice));
    }

    proptest! {
        #[test]
        fn every_descent_ends(
            kinds in prop::collection::vec(0usize..FaultKind::ALL.len(), 1..100), tries in 1u32..50,
        ) {
            let policy = Policy::default().max_tries(tries);
            let mut ladder = Ladder::new(&policy, 1);
            for kind in kinds {
                let kind = FaultKind::ALL[kind];
                match ladder.descend(&fault(kind), &able()) {
                    Some(rung) => prop_assert!(policy.rungs(kind).contains(&rung)),
                    None => break,
                }
            }
            prop_assert!(ladder.attempt() <= tries);
            prop_assert!(ladder.state.parts <= 8);
        }
    }
}
