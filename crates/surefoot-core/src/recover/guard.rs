//! Guarded work: the loop that runs a closure, catches what goes wrong and goes down the ladder.

use std::borrow::Cow;
use std::time::Instant;

use super::drill::Moment;
use super::ladder::{Abilities, Ladder};
use super::segment::SegmentKey;
use super::{Confirm, Outcome, Rung, Split, Splittable, Step};
use crate::device::DeviceName;
use crate::engine::{Engine, Failure};
use crate::fault::{BoxError, Fault, FaultKind, Response, catch};
use crate::footing::{Footing, Ready};
use crate::journal::{Event, EventKind, Level};
use crate::place::Place;
use crate::precision::Dtype;
use crate::supervisor;

/// Faults that a device will have with a segment each time. Others pass, as a lack of memory does.
const LASTING: [FaultKind; 3] =
    [FaultKind::UnsupportedDtype, FaultKind::UnsupportedOp, FaultKind::KernelCompile];

/// A piece of work, described: which rungs it can take, and what is checked of its result.
#[derive(Debug)]
pub struct Task<'f, E: Engine> {
    footing: &'f Footing<E>,
    name: Cow<'static, str>,
    rungs: Vec<Rung>,
    finite: bool,
    start: Option<DeviceName>,
    checkpointing: bool,
    parts: usize,
    first_failure: Option<Failure>,
}

impl<'f, E: Engine> Task<'f, E> {
    pub(crate) fn new(footing: &'f Footing<E>, name: Cow<'static, str>) -> Self {
        Self {
            footing,
            name,
            rungs: Vec::new(),
            finite: false,
            start: None,
            checkpointing: false,
            parts: 1,
            first_failure: None,
        }
    }

    /// Says that the work honours `rung`: [`Step::is_checkpointing`], [`Step::compute`] for
    /// precision, [`Step::is_streaming`] for streaming.
    #[must_use]
    pub fn can(mut self, rung: Rung) -> Self {
        if !self.rungs.contains(&rung) {
            self.rungs.push(rung);
        }
        self
    }

    /// Starts on this device of the chain if it is not lost, not on the first: for work whose
    /// state moved there and should stay.
    #[must_use]
    pub fn starting_on(mut self, device: DeviceName) -> Self {
        self.start = Some(device);
        self
    }

    /// Starts in at least so many parts, as an earlier measurement found it needed.
    #[must_use]
    pub fn starting_in(mut self, parts: usize) -> Self {
        self.parts = parts;
        self
    }

    /// Starts with gradient checkpointing if `on`, as an earlier run found it needed.
    #[must_use]
    pub fn checkpointing(mut self, on: bool) -> Self {
        self.checkpointing = on;
        self
    }

    /// Counts `failure` as the first try: for work that was tried without a guard before, because
    /// that costs less, and failed. It is classified, recorded and answered as if the guard had
    /// caught it.
    #[must_use]
    pub fn after_failure(mut self, failure: Failure) -> Self {
        self.first_failure = Some(failure);
        self
    }

    /// Makes inf or NaN in the result a numeric fault. Reads the whole result.
    #[must_use]
    pub fn finite(mut self) -> Self {
        self.finite = true;
        self
    }

    /// Runs the work.
    pub fn run<T: Confirm<E>>(
        self,
        work: impl FnMut(&Step<'_, E>) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        self.descend(1, None, work)
    }

    /// Runs the work on `inputs`, placed anew for each try. Inputs that don't belong together
    /// are repaired or refused before the device sees them.
    pub fn run_with<P: Place<E>, T: Confirm<E>>(
        self,
        inputs: P,
        mut work: impl FnMut(&Step<'_, E>, P) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        self.descend(1, None, |step| work(step, step.place(inputs.clone())?))
    }

    /// Work over a batch, which is run in parts if it has to be.
    pub fn split<B: Splittable<E>>(self, batch: B) -> Split<'f, E, B> {
        Split::new(self, batch)
    }

    /// Runs work over `samples` samples that takes them apart itself, along [`Step::ranges`]: for
    /// work that does more with the parts than put their results together.
    pub fn run_in_parts<T: Confirm<E>>(
        self,
        samples: usize,
        work: impl FnMut(&Step<'_, E>) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        self.can(Rung::Split).descend(samples.max(1), None, work)
    }

    /// Runs a part of a model that may go to the CPU alone: if its device can't run it, it runs
    /// on the CPU and its result comes back to the device. That is found out once for each
    /// combination of name, shapes and dtypes, and remembered; a fault that may pass is not.
    pub fn run_segment<P: Place<E>, T: Confirm<E> + Place<E>>(
        self,
        inputs: P,
        mut work: impl FnMut(&Step<'_, E>, P) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        let task = self.can(Rung::CpuSegment);
        let home = &task.footing.ready(task.first_device()?)?.target;
        let key = SegmentKey::new(&task.name, home.name, &inputs);
        task.descend(1, Some(key), |step| {
            let result = work(step, step.place(inputs.clone())?)?;
            Ok(match step.state.on_cpu {
                true => result.place(home),
                false => result,
            })
        })
    }

    /// Where in the chain the work starts.
    fn first_device(&self) -> Result<usize, Fault> {
        self.start
            .and_then(|name| self.footing.usable_named(name))
            .or_else(|| self.footing.usable_from(0))
            .ok_or_else(|| self.footing.nothing_left())
    }

    pub(super) fn descend<T: Confirm<E>>(
        mut self,
        samples: usize,
        segment: Option<SegmentKey>,
        mut work: impl FnMut(&Step<'_, E>) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        let footing = self.footing;
        let mut failed_before = self.first_failure.take();
        let operation: &str = &self.name;
        let mut at = self.first_device()?;
        let mut ready = footing.ready(at).map_err(|fault| fault.during(operation.to_owned()))?;
        let splits = self.rungs.contains(&Rung::Split);
        let known_parts = match splits {
            true => footing
                .splits
                .parts(operation, ready.target.name)
                .max(footing.first_parts)
                .max(self.parts),
            false => 1,
        };
        let mut ladder = Ladder::new(&footing.policy, known_parts.min(samples));
        ladder.state.checkpointing = self.checkpointing;
        let mut compute = ready.precision.compute;
        if segment.as_ref().is_some_and(|key| footing.segments.runs_on_cpu(key)) {
            ladder.state.on_cpu = true;
        }
        let run = footing.drill.start_run(operation);
        let mut earlier: Vec<Fault> = Vec::new();
        let started = Instant::now();
        loop {
            let on = if ladder.state.on_cpu { footing.cpu()? } else { ready };
            let step = Step {
                footing,
                ready: on,
                operation,
                attempt: ladder.attempt(),
                compute,
                state: ladder.state,
            };
            supervisor::beat(&on.label);
            let began = Instant::now();
            let tried = match failed_before.take() {
                Some(failure) => Err(self.fault_on(on, failure)),
                None => self.try_once(&step, run, &mut work),
            };
            let mut fault = match tried {
                Err(fault) => fault,
                Ok(value) => {
                    // A recovery counts as one only once its result was compared.
                    if !earlier.is_empty() && footing.policy.verifies() {
                        let verified = self.verify(&step, &value, &mut work);
                        verified.map_err(|fault| {
                            self.record_fault(on, &fault);
                            self.give_up(on, started, fault, std::mem::take(&mut earlier))
                        })?;
                    }
                    if !step.state.on_cpu {
                        footing.note_success(at);
                    }
                    if segment.is_none() && at < footing.together {
                        for member in footing.members(step.state.left) {
                            footing.note_success(member);
                        }
                    }
                    // A batch of fewer samples than parts says nothing of a whole one.
                    if splits && known_parts <= samples {
                        footing.splits.worked(operation, ready.target.name, step.state.parts);
                    }
                    let recovered = ladder.used().last().copied();
                    let lasts = earlier.last().is_some_and(|fault| LASTING.contains(&fault.kind));
                    if let (Some(Rung::CpuSegment), Some(key), true) = (recovered, segment, lasts) {
                        footing.segments.remember(key);
                    }
                    let elapsed = started.elapsed();
                    self.record_end(&step, elapsed, recovered);
                    return Ok(Outcome {
                        value,
                        faults: earlier,
                        rungs: ladder.used().to_vec(),
                        device: step.device_name(),
                        attempts: ladder.attempt(),
                        parts: step.state.parts,
                        elapsed,
                    });
                }
            };
            // Work that is laid over several devices may fail on another one than its own.
            let failed = match (&segment, &fault.device) {
                (None, Some(label)) => footing.member_labelled(label).unwrap_or(at),
                _ => at,
            };
            if !ladder.state.on_cpu {
                footing.note_fault(failed, fault.kind, began);
            }
            self.record_fault(on, &fault);
            // A segment's result belongs beside those of the others: it doesn't leave alone.
            let leaves = segment.is_none() && footing.policy.allows(Rung::NextDevice);
            let next = match failed == at {
                true => leaves.then(|| self.next_device(at)).flatten(),
                // The work goes on where it is, without the device that failed.
                false => leaves.then_some(at),
            };
            let other = self.other_precision(on, compute, fault.kind);
            let can = Abilities {
                rungs: self.rungs.clone(),
                max_parts: samples,
                other_precision: other.is_some(),
                next_device: next.is_some(),
            };
            let Some(rung) = ladder.descend(&fault, &can) else {
                return Err(self.give_up(on, started, fault, earlier));
            };
            match rung {
                Rung::Reclaim => drop(footing.reclaim_on(footing.ready(failed)?)),
                Rung::Precision => compute = other.unwrap_or(compute),
                Rung::NextDevice => {
                    ladder.state.left |= 1_u64.checked_shl(failed as u32).unwrap_or(0);
                    at = next.unwrap_or(at);
                    ready = footing.ready(at)?;
                    compute = ready.precision.compute;
                    ladder.state.on_cpu = false;
                }
                _ => {}
            }
            fault.response = Some(Response::new(rung, ladder.state.parts, &ready.label));
            earlier.push(fault);
            footing.journal().with(|| {
                Event::new(EventKind::Rung, self.name.clone())
                    .device(ready.label.clone())
                    .dtype(compute.as_str())
                    .recovery(rung.as_str())
                    .context("attempt", u64::from(ladder.attempt()))
                    .context("parts", ladder.state.parts as u64)
            });
        }
    }

    fn record_fault(&self, on: &Ready<E>, fault: &Fault) {
        self.footing.journal().with(|| {
            let event = Event::new(EventKind::Fault, self.name.clone()).device(on.label.clone());
            let in_use = self.footing.engine().memory_in_use(&on.device);
            event.fault(fault.kind, fault.chain.join(": ")).context("in_use", in_use)
        });
    }

    /// Records the end of a run that failed; gives its fault with the ones before it.
    fn give_up(&self, on: &Ready<E>, started: Instant, fault: Fault, earlier: Vec<Fault>) -> Fault {
        self.footing.journal().with(|| {
            Event::new(EventKind::Step, self.name.clone())
                .device(on.label.clone())
                .duration(started.elapsed())
                .fault(fault.kind, fault.root_cause().to_owned())
        });
        fault.after(earlier)
    }

    /// One try: the drills' moments, the work, and the confirmation of its result.
    fn try_once<T: Confirm<E>>(
        &self,
        step: &Step<'_, E>,
        run: u64,
        work: &mut impl FnMut(&Step<'_, E>) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        let engine = self.footing.engine();
        let outcome = catch(|| {
            let drill = self.footing.drill.enter(&self.name, &step.ready.label, run);
            drill.strike(Moment::Before)?;
            let value = work(step)?;
            // Synchronous work is done when the call returns.
            if engine.is_asynchronous(&step.ready.device) {
                value.confirm(&self.name)?;
            }
            if self.finite {
                value.check_finite(&self.name)?;
            }
            drill.strike(Moment::After)?;
            Ok::<_, BoxError>(value)
        });
        let failure = match outcome {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Failure::Error(error),
            Err(record) => Failure::Panic(record),
        };
        Err(self.fault_on(step.ready, failure))
    }

    /// What `failure` was, on the device where the work ran.
    fn fault_on(&self, on: &Ready<E>, failure: Failure) -> Fault {
        let mut fault = self.footing.classify(&self.name, failure);
        fault.device.get_or_insert_with(|| on.label.clone());
        fault
    }

    /// The next device of the chain that opens. One that doesn't is recorded and passed over.
    fn next_device(&self, from: usize) -> Option<usize> {
        let mut at = from;
        loop {
            at = self.footing.usable_from(at + 1)?;
            match self.footing.ready(at) {
                Ok(_) => return Some(at),
                Err(fault) => self.footing.journal().with(|| {
                    Event::new(EventKind::Selection, "pass over")
                        .device(fault.device.clone().unwrap_or_default())
                        .context("reason", fault.chain.join(": "))
                }),
            }
        }
    }

    /// The precision to change to: lower for memory, fp32 for range and support.
    fn other_precision(&self, on: &Ready<E>, now: Dtype, kind: FaultKind) -> Option<Dtype> {
        match (kind, now) {
            (FaultKind::OutOfMemory, Dtype::F32) => [Dtype::BF16, Dtype::F16]
                .into_iter()
                .find(|dtype| self.footing.engine().computes_in(&on.device, *dtype)),
            (FaultKind::OutOfMemory, _) | (_, Dtype::F32) => None,
            _ => Some(Dtype::F32),
        }
    }

    /// Runs the work plainly on the CPU and compares.
    fn verify<T: Confirm<E>>(
        &self,
        step: &Step<'_, E>,
        value: &T,
        work: &mut impl FnMut(&Step<'_, E>) -> Result<T, BoxError>,
    ) -> Result<(), Fault> {
        let plain = Step {
            footing: self.footing,
            ready: self.footing.cpu()?,
            operation: step.operation,
            attempt: step.attempt,
            compute: Dtype::F32,
            state: Ladder::new(&self.footing.policy, 1).state,
        };
        let reference = match catch(|| work(&plain)) {
            Ok(Ok(reference)) => reference,
            Ok(Err(error)) => return Err(self.fault_on(plain.ready, Failure::Error(error))),
            Err(record) => return Err(self.fault_on(plain.ready, Failure::Panic(record))),
        };
        let allowed = 64.0 * step.compute.epsilon();
        let Some(distance) = value.distance(&reference) else {
            // Nobody should take it for a result that was compared and found right.
            self.footing.journal().with(|| {
                Event::new(EventKind::Note, self.name.clone())
                    .level(Level::Warn)
                    .device(step.ready.label.clone())
                    .context("verified", "no: results of this type can't be compared")
            });
            return Ok(());
        };
        match distance {
            distance if distance.is_nan() || distance > allowed => Err(Fault::new(
                FaultKind::Numeric,
                self.name.to_string(),
                format!(
                    "the recovered result is {distance:.1e} from the CPU's, where {allowed:.1e} \
                     is allowed in {}",
                    step.compute
                ),
            )
            .on(step.ready.label.clone())),
            _ => Ok(()),
        }
    }

    fn record_end(
        &self,
        step: &Step<'_, E>,
        elapsed: std::time::Duration,
        recovered: Option<Rung>,
    ) {
        self.footing.journal().with(|| {
            let event = Event::new(EventKind::Step, self.name.clone())
                .device(step.ready.label.clone())
                .dtype(step.compute.as_str())
                .duration(elapsed);
            match recovered {
                Some(rung) => event.recovery(rung.as_str()),
                None => event,
            }
        });
    }
}
