//! One try of a guarded piece of work, as the work sees it.

use std::ops::Range;

use super::batch::ranges;
use super::drill::{self, Point};
use super::ladder::RecoveryState;
use crate::device::DeviceName;
use crate::device::memory::Reservation;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::footing::{Footing, Ready, Room};
use crate::journal::{Event, EventKind};
use crate::place::{Place, Target, ensure};
use crate::precision::Dtype;

/// One try of a guarded piece of work: where it runs and how.
#[derive(Debug)]
pub struct Step<'f, E: Engine> {
    pub(super) footing: &'f Footing<E>,
    pub(super) ready: &'f Ready<E>,
    pub(super) operation: &'f str,
    pub(super) attempt: u32,
    pub(super) compute: Dtype,
    pub(super) state: RecoveryState,
}

impl<'f, E: Engine> Step<'f, E> {
    /// The device to compute on.
    pub fn device(&self) -> &'f E::Handle {
        self.footing.engine().handle(&self.ready.device)
    }

    /// What the device is called.
    pub fn device_name(&self) -> DeviceName {
        self.ready.target.name
    }

    /// The devices that this try may lay its work over, in the order of the chain, its own device among them: those that
    /// were asked for together, without those that are lost or that this run has left. Empty where there are no two.
    pub fn together(&self) -> Vec<DeviceName> {
        let members = self.footing.members(self.state.left);
        let names: Vec<_> = members.into_iter().map(|at| self.footing.name_at(at)).collect();
        match names.len() > 1 && names.contains(&self.device_name()) {
            true => names,
            false => Vec::new(),
        }
    }

    /// What the work is called.
    pub fn operation(&self) -> &'f str {
        self.operation
    }

    /// Which try this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The dtype of heavy operations.
    pub fn compute(&self) -> Dtype {
        self.compute
    }

    /// Whether activations are recomputed in the backward pass.
    pub fn is_checkpointing(&self) -> bool {
        self.state.checkpointing
    }

    /// Whether weights should be streamed rather than kept on the device.
    pub fn is_streaming(&self) -> bool {
        self.state.streaming
    }

    /// In how many parts this try takes its samples apart.
    pub fn parts(&self) -> usize {
        self.state.parts
    }

    /// The ranges in which this try takes `samples` apart; one, until splitting was needed.
    pub fn ranges(&self, samples: usize) -> impl Iterator<Item = Range<usize>> + use<E> {
        ranges(samples, self.state.parts).inspect(|range| {
            if range.start > 0 {
                drill::between_parts();
            }
        })
    }

    /// Marks the boundary between two parts, for work that takes its samples apart without
    /// [`Step::ranges`]: a drill may strike here.
    pub fn between_parts(&self) {
        drill::between_parts();
    }

    /// Puts tensors or weights on this try's device, and records what had to move.
    pub fn place<P: Place<E>>(&self, value: P) -> Result<P, Fault> {
        drill::point(Point::Allocation);
        let (value, moved) = ensure(self.footing.engine(), value, &self.ready.target)
            .map_err(|fault| fault.during(self.operation.to_owned()))?;
        if !moved.is_empty() {
            self.footing.journal().with(|| {
                Event::new(EventKind::Move, self.operation.to_owned())
                    .device(self.ready.label.clone())
                    .dtype(self.ready.target.dtype.as_str())
                    .context("tensors", moved.len() as u64)
                    .context("first", moved[0].to_string())
            });
        }
        Ok(value)
    }

    /// Where this try's tensors belong.
    pub fn target(&self) -> &'f Target<E> {
        &self.ready.target
    }

    /// How many bytes may still be allocated on this try's device, and on the host.
    pub fn room(&self) -> Room {
        self.footing.room_on(self.ready)
    }

    /// Reserves memory before it is allocated. Hold the reservation until it is.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, Fault> {
        drill::point(Point::Allocation);
        self.footing.reserve_on(self.ready, self.operation, bytes)
    }
}
