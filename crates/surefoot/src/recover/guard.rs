//! Guarded work: the loop that runs a closure, catches what goes wrong and climbs down.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use burn::tensor::Device;

use super::batch::{Batch, Part, ranges};
use super::ladder::{Abilities, Footwork, Ladder};
use super::segment::SegmentKey;
use super::{Confirm, Rung};
use crate::device::memory::Reservation;
use crate::device::{DeviceName, supervisor};
use crate::fault::{BoxError, Fault, FaultKind, catch};
use crate::footing::{Footing, Ready};
use crate::journal::{Event, EventKind, Level};
use crate::place::{Autocast, Dtype, DtypeSupport, Place, Target, ensure, probe_dtype};

/// Faults that a device will have with a segment each time. Others pass, as a lack of memory does.
const LASTING: [FaultKind; 3] =
    [FaultKind::UnsupportedDtype, FaultKind::UnsupportedOp, FaultKind::KernelCompile];

/// One try of a guarded piece of work: where it runs and how.
#[derive(Debug)]
pub struct Step<'f> {
    footing: &'f Footing,
    ready: &'f Ready,
    operation: &'f str,
    attempt: u32,
    compute: Dtype,
    footwork: Footwork,
}

impl Step<'_> {
    /// The device to compute on.
    pub fn device(&self) -> &Device {
        self.ready.device.burn()
    }

    /// The device with autodiff, and with gradient checkpointing once that rung was taken.
    pub fn autodiff_device(&self) -> Device {
        let device = self.device().clone().autodiff();
        if self.footwork.checkpointing { device.gradient_checkpointing() } else { device }
    }

    /// What the device is called.
    pub fn device_name(&self) -> DeviceName {
        self.ready.device.name()
    }

    /// Which try this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The casts for this try's precision.
    pub fn autocast(&self) -> Autocast {
        Autocast::new(self.compute)
    }

    /// Whether activations are recomputed in the backward pass.
    pub fn is_checkpointing(&self) -> bool {
        self.footwork.checkpointing
    }

    /// In how many parts this try takes its samples apart.
    pub fn parts(&self) -> usize {
        self.footwork.parts
    }

    /// The dtype of heavy operations.
    pub fn compute(&self) -> Dtype {
        self.compute
    }

    /// The ranges in which this try takes `samples` apart; one, until splitting was needed.
    pub fn ranges(&self, samples: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        ranges(samples, self.footwork.parts)
    }

    /// Whether weights should be streamed rather than kept on the device.
    pub fn is_streaming(&self) -> bool {
        self.footwork.streaming
    }

    /// Puts tensors or weights on this try's device, and tells the journal what had to move.
    pub fn place<P: Place>(&self, value: P) -> Result<P, Fault> {
        let (value, moved) = ensure(value, &self.ready.target)
            .map_err(|fault| fault.during(self.operation.to_owned()))?;
        if !moved.is_empty() {
            self.footing.journal.with(|| {
                Event::new(EventKind::Move, self.operation.to_owned())
                    .device(self.ready.label.clone())
                    .dtype(self.ready.target.dtype.as_str())
                    .context("tensors", moved.len() as u64)
                    .context("first", moved[0].from.to_string())
            });
        }
        Ok(value)
    }

    /// Where this try's tensors belong.
    pub fn target(&self) -> &Target {
        &self.ready.target
    }

    /// Asks for memory before it is allocated. Hold the reservation until it is.
    pub fn admit(&self, bytes: u64) -> Result<Reservation, Fault> {
        self.ready.admit(self.operation, bytes)
    }
}

/// A piece of work, described: which rungs it can take, and what is checked of its result.
#[derive(Debug)]
pub struct Task<'f> {
    footing: &'f Footing,
    name: Cow<'static, str>,
    rungs: Vec<Rung>,
    finite: bool,
    start: Option<DeviceName>,
    checkpointing: bool,
}

impl<'f> Task<'f> {
    pub(crate) fn new(footing: &'f Footing, name: Cow<'static, str>) -> Self {
        Self { footing, name, rungs: Vec::new(), finite: false, start: None, checkpointing: false }
    }

    /// Says that the work honours `rung`: [`Step::autodiff_device`] for checkpointing,
    /// [`Step::autocast`] for precision, [`Step::is_streaming`] for streaming.
    #[must_use]
    pub fn can(mut self, rung: Rung) -> Self {
        self.rungs.push(rung);
        self
    }

    /// Starts on this device of the chain if it is not lost, not on the first: for work whose
    /// state moved there and should stay.
    #[must_use]
    pub fn starting_on(mut self, device: DeviceName) -> Self {
        self.start = Some(device);
        self
    }

    /// Starts with gradient checkpointing if `on`, as an earlier run found it needed.
    #[must_use]
    pub fn checkpointing(mut self, on: bool) -> Self {
        self.checkpointing = on;
        self
    }

    /// Makes inf or NaN in the result a numeric fault. Reads the whole result.
    #[must_use]
    pub fn finite(mut self) -> Self {
        self.finite = true;
        self
    }

    /// Runs the work.
    pub fn run<T: Confirm>(
        self,
        work: impl Fn(&Step<'_>) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        self.climb(1, None, work)
    }

    /// Runs the work on `inputs`, placed anew for each try. Inputs that don't belong together
    /// are repaired or refused before the device sees them.
    pub fn run_with<P: Place, T: Confirm>(
        self,
        inputs: P,
        work: impl Fn(&Step<'_>, P) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        self.climb(1, None, |step| work(step, step.place(inputs.clone())?))
    }

    /// Runs the work over a batch, in parts if it has to be; `join` puts the parts' results
    /// together so that they equal the whole batch's.
    pub fn run_split<P: Place, B: Batch, T: Confirm>(
        mut self,
        fixed: P,
        batch: B,
        work: impl Fn(&Step<'_>, P, B) -> Result<T, BoxError>,
        join: impl Fn(Vec<Part<T>>) -> T,
    ) -> Result<T, Fault> {
        self.rungs.push(Rung::Split);
        let samples = batch.samples();
        self.climb(samples.max(1), None, |step| {
            batch.check(step.operation)?;
            let fixed = step.place(fixed.clone())?;
            let mut parts = Vec::with_capacity(step.footwork.parts);
            for range in ranges(samples, step.footwork.parts) {
                let samples = range.len();
                let part = step.place(batch.part(range))?;
                let value = work(step, fixed.clone(), part)?;
                if step.footwork.parts > 1 {
                    // A part's memory is only free for the next one once it is done.
                    value.confirm(step.operation)?;
                }
                parts.push(Part { value, samples });
            }
            Ok(join(parts))
        })
    }

    /// Runs work over `samples` samples that takes them apart itself, along [`Step::ranges`]: for
    /// work that does more with the parts than put their results together.
    pub fn run_in_parts<T: Confirm>(
        mut self,
        samples: usize,
        work: impl Fn(&Step<'_>) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        self.rungs.push(Rung::Split);
        self.climb(samples.max(1), None, work)
    }

    /// Runs a part of a model that may go to the CPU alone: if its device can't run it, it runs
    /// on the CPU and its result comes back to the device. That is found out once for each
    /// combination of name, shapes and dtypes, and remembered; a fault that may pass is not.
    pub fn run_segment<P: Place, T: Confirm + Place>(
        mut self,
        inputs: P,
        work: impl Fn(&Step<'_>, P) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        self.rungs.push(Rung::CpuSegment);
        let home = self.footing.ready(self.first_device()?)?;
        let key = SegmentKey::new(&self.name, home.device.name(), &inputs);
        self.climb(1, Some(key), |step| {
            let result = work(step, step.place(inputs.clone())?)?;
            Ok(match step.footwork.on_cpu {
                true => result.place(&home.target),
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

    fn climb<T: Confirm>(
        &self,
        samples: usize,
        segment: Option<SegmentKey>,
        work: impl Fn(&Step<'_>) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        let footing = self.footing;
        let operation: &str = &self.name;
        let mut at = self.first_device()?;
        let mut ready = match footing.ready(at) {
            Ok(ready) => ready,
            Err(fault) => return Err(fault.during(operation.to_owned())),
        };
        let splits = self.rungs.contains(&Rung::Split);
        let known_parts = if splits {
            footing.splits.parts(operation, ready.device.name()).max(footing.first_parts)
        } else {
            1
        };
        let mut ladder = Ladder::new(&footing.policy, known_parts.min(samples));
        ladder.footwork.checkpointing = self.checkpointing;
        let mut compute = ready.precision.compute;
        if segment.as_ref().is_some_and(|key| footing.segments.runs_on_cpu(key)) {
            ladder.footwork.on_cpu = true;
        }
        let mut earlier: Vec<Fault> = Vec::new();
        let started = Instant::now();
        loop {
            let on = if ladder.footwork.on_cpu { footing.cpu()? } else { ready };
            let step = Step {
                footing,
                ready: on,
                operation,
                attempt: ladder.attempt(),
                compute,
                footwork: ladder.footwork,
            };
            supervisor::beat(&on.label);
            let began = Instant::now();
            let fault = match self.try_once(&step, &work) {
                Ok(value) => {
                    if !step.footwork.on_cpu {
                        footing.note_success(at);
                    }
                    // A batch of fewer samples than parts says nothing of a whole one.
                    if splits && known_parts <= samples {
                        footing.splits.worked(operation, ready.device.name(), step.footwork.parts);
                    }
                    let recovered = ladder.used().last().copied();
                    let lasts = earlier.last().is_some_and(|fault| LASTING.contains(&fault.kind));
                    if let (Some(Rung::CpuSegment), Some(key), true) = (recovered, segment, lasts) {
                        footing.segments.remember(key);
                    }
                    if recovered.is_some() && footing.policy.verifies() {
                        self.verify(&step, &value, &work)?;
                    }
                    self.tell_end(&step, started, recovered);
                    return Ok(value);
                }
                Err(fault) => fault,
            };
            if !ladder.footwork.on_cpu {
                footing.note_fault(at, fault.kind, began);
            }
            footing.journal.with(|| {
                let event =
                    Event::new(EventKind::Fault, self.name.clone()).device(on.label.clone());
                let in_use = on.device.memory_in_use();
                event.fault(fault.kind, fault.chain.join(": ")).context("in_use", in_use)
            });
            // A segment's result belongs beside those of the others: it doesn't leave alone.
            let leaves = segment.is_none() && footing.policy.allows(Rung::NextDevice);
            let next = leaves.then(|| self.next_device(at)).flatten();
            let other = self.other_precision(on, compute, fault.kind);
            let can = Abilities {
                rungs: self.rungs.clone(),
                max_parts: samples,
                other_precision: other.is_some(),
                next_device: next.is_some(),
            };
            let Some(rung) = ladder.descend(&fault, &can) else {
                let fault = fault.after(earlier);
                footing.journal.with(|| {
                    Event::new(EventKind::Step, self.name.clone())
                        .device(on.label.clone())
                        .duration(started.elapsed())
                        .fault(fault.kind, fault.root_cause().to_owned())
                });
                return Err(fault);
            };
            earlier.push(fault);
            match rung {
                Rung::Reclaim => drop(footing.clean(ready)),
                Rung::Precision => compute = other.unwrap_or(compute),
                Rung::NextDevice => {
                    at = next.unwrap_or(at);
                    ready = footing.ready(at)?;
                    compute = ready.precision.compute;
                    ladder.footwork.on_cpu = false;
                }
                _ => {}
            }
            footing.journal.with(|| {
                Event::new(EventKind::Rung, self.name.clone())
                    .device(ready.label.clone())
                    .dtype(compute.as_str())
                    .recovery(rung.as_str())
                    .context("attempt", u64::from(ladder.attempt()))
                    .context("parts", ladder.footwork.parts as u64)
            });
        }
    }

    fn try_once<T: Confirm>(
        &self,
        step: &Step<'_>,
        work: &impl Fn(&Step<'_>) -> Result<T, BoxError>,
    ) -> Result<T, Fault> {
        let label = &step.ready.label;
        if let Some(fault) = self.footing.drill.strike(&self.name, label) {
            return Err(fault);
        }
        let located = |mut fault: Fault| {
            fault.device.get_or_insert_with(|| label.clone());
            fault
        };
        let outcome = catch(|| {
            let value = work(step)?;
            // On the CPU work is done when the call returns.
            if step.ready.device.is_asynchronous() {
                value.confirm(&self.name)?;
            }
            if self.finite {
                value.check_finite(&self.name)?;
            }
            Ok::<_, BoxError>(value)
        });
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(located(Fault::from_error(&self.name, error.as_ref()))),
            Err(record) => Err(located(Fault::from_panic(&self.name, &record))),
        }
    }

    /// The next device of the chain that opens. One that doesn't is told and passed over.
    fn next_device(&self, from: usize) -> Option<usize> {
        let mut at = from;
        loop {
            at = self.footing.usable_from(at + 1)?;
            match self.footing.ready(at) {
                Ok(_) => return Some(at),
                Err(fault) => self.footing.journal.with(|| {
                    Event::new(EventKind::Selection, "pass over")
                        .device(fault.device.clone().unwrap_or_default())
                        .context("reason", fault.chain.join(": "))
                }),
            }
        }
    }

    /// The precision to change to: lower for memory, fp32 for range and support.
    fn other_precision(&self, on: &Ready, now: Dtype, kind: FaultKind) -> Option<Dtype> {
        match (kind, now) {
            (FaultKind::OutOfMemory, Dtype::F32) => [Dtype::BF16, Dtype::F16]
                .into_iter()
                .find(|dtype| probe_dtype(&on.device, *dtype) == DtypeSupport::Works),
            (FaultKind::OutOfMemory, _) | (_, Dtype::F32) => None,
            _ => Some(Dtype::F32),
        }
    }

    /// Runs the work plainly on the CPU and compares.
    fn verify<T: Confirm>(
        &self,
        step: &Step<'_>,
        value: &T,
        work: &impl Fn(&Step<'_>) -> Result<T, BoxError>,
    ) -> Result<(), Fault> {
        let plain = Step {
            footing: self.footing,
            ready: self.footing.cpu()?,
            operation: step.operation,
            attempt: step.attempt,
            compute: Dtype::F32,
            footwork: Ladder::new(&self.footing.policy, 1).footwork,
        };
        let reference = catch(|| work(&plain))
            .map_err(|record| Fault::from_panic(&self.name, &record))?
            .map_err(|error| Fault::from_error(&self.name, error.as_ref()))?;
        let allowed = 64.0 * step.compute.epsilon();
        let Some(distance) = value.distance(&reference) else {
            // Nobody should take it for a result that was compared and found right.
            self.footing.journal.with(|| {
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

    fn tell_end(&self, step: &Step<'_>, started: Instant, recovered: Option<Rung>) {
        self.footing.journal.with(|| {
            let event = Event::new(EventKind::Step, self.name.clone())
                .device(step.ready.label.clone())
                .dtype(step.compute.as_str())
                .duration(started.elapsed());
            match recovered {
                Some(rung) => event.recovery(rung.as_str()),
                None => event,
            }
        });
    }
}
