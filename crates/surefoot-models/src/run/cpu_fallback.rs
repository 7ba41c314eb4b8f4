//! Blocks that their device can't run: each goes to the CPU alone, with its weights and its part
//! of the cache, and its result comes back.
//!
//! A block is run without a guard first, which costs nothing. If that fails, it becomes a guarded
//! segment: the core records the fault, answers it with the next rung (which may be to run the block
//! on the CPU) and remembers. If the block's part of the cache was lost with it, it can't be run
//! again alone, and its fault becomes the run's. A GPU's errors
//! may show only when a result is read, several blocks on, so the runner confirms the result of
//! every block of an attempt that repeats a failed one before the next block begins: that finds the
//! block that fails. Whether there is a drill makes no difference; a block is a named part of the
//! pass that a drill can strike (`op=block 3`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::tensor::{Device, Tensor};
use surefoot::device::DeviceName;
use surefoot::fault::{Failure, catch};
use surefoot::place::{Place, Spot, Target};
use surefoot::recover::{Confirm, Step};
use surefoot::{BoxError, Burn, Fault, FaultKind, Footing};

use super::block::{BlockRunner, Pass};
use super::cache::Store;
use super::model::Model;
use super::output::Rows;
use crate::error::ModelError;
use crate::stream::store::Session;

/// What runs the parts of a model as segments.
pub(crate) struct CpuFallback {
    footing: Arc<Footing>,
    /// Where each block belongs, and behind them the head.
    homes: Vec<DeviceName>,
    confirms_blocks: AtomicBool,
    /// The blocks' norms and biases on the CPU, where they were needed there.
    spare: Vec<OnceLock<BlockRunner>>,
    /// Parts that ran on the CPU; the head is behind the last block.
    moved: Mutex<BTreeMap<usize, Option<FaultKind>>>,
}

impl CpuFallback {
    pub(crate) fn new(footing: Arc<Footing>, homes: Vec<DeviceName>) -> Self {
        let spare = (1..homes.len()).map(|_| OnceLock::new()).collect();
        let confirms_blocks = AtomicBool::new(false);
        Self { footing, homes, confirms_blocks, spare, moved: Mutex::default() }
    }

    /// Whether every block is a segment whose result is confirmed.
    pub(crate) fn confirm_blocks(&self, on: bool) {
        self.confirms_blocks.store(on, Ordering::Relaxed);
    }

    /// Whether no part ran on the CPU and no block's result is to be confirmed.
    pub(super) fn is_idle(&self) -> bool {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.is_empty() && !self.confirms_blocks.load(Ordering::Relaxed)
    }

    /// Lets a drill strike the points of block `number`, whose work was recorded with that of others: the fault is the run's.
    pub(super) fn strike(
        &self,
        number: usize,
        points: impl FnOnce() -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let drill = self.footing.drill();
        match drill.is_empty() {
            true => points(),
            false => drill.part(&self.name(number), &self.homes[number].to_string(), points),
        }
    }

    /// The parts that ran on the CPU.
    pub(crate) fn on_cpu(&self) -> Vec<MovedPart> {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = moved.iter();
        moved.map(|(part, reason)| MovedPart { name: self.name(*part), reason: *reason }).collect()
    }

    fn name(&self, part: usize) -> String {
        if part < self.spare.len() { format!("block {part}") } else { "head".to_owned() }
    }

    /// Runs a block; `on` makes the pass for another device.
    #[expect(clippy::too_many_arguments, reason = "all that a block runs with")]
    pub(crate) fn block<'p>(
        &self,
        model: &Model,
        number: usize,
        x: Tensor<2>,
        pass: &Pass<'p>,
        on: &dyn Fn(&Device) -> Pass<'p>,
        session: &mut Session<'_>,
        cache: Option<&mut Store>,
    ) -> Result<Tensor<2>, ModelError> {
        let cached = cache.as_ref().is_some_and(|cache| cache.has(number));
        let (session, cache) = (RefCell::new(session), RefCell::new(cache));
        let lost_its_cache =
            || cached && !cache.borrow().as_ref().is_some_and(|cache| cache.has(number));
        self.run(number, x, lost_its_cache, |device, x| {
            let (mut session, mut cache) = (session.borrow_mut(), cache.borrow_mut());
            if device == model.parts.of(number) {
                return model.blocks[number].run(x, pass, &mut session, cache.as_deref_mut());
            }
            let block = match self.spare[number].get() {
                Some(block) => block,
                None => {
                    let block = model.block_on(number, device)?;
                    self.spare[number].get_or_init(|| block)
                }
            };
            block.run(x, &on(device), &mut session, cache.as_deref_mut())
        })
    }

    /// Runs the head.
    pub(crate) fn head(
        &self,
        x: Tensor<2>,
        work: impl Fn(Tensor<2>) -> Result<Rows, ModelError>,
    ) -> Result<Rows, ModelError> {
        self.run(self.spare.len(), x, || false, |_, x| work(x))
    }

    /// Runs a part without a guard, or as a guarded segment if that fails. `lost_its_cache` says
    /// whether a try that failed left the part without what it needs for another.
    fn run<T>(
        &self,
        part: usize,
        x: Tensor<2>,
        lost_its_cache: impl Fn() -> bool,
        work: impl Fn(&Device, Tensor<2>) -> Result<T, ModelError>,
    ) -> Result<T, ModelError>
    where
        Ran<T>: Confirm<Burn> + Place<Burn>,
    {
        let home = self.homes[part];
        let confirms_blocks = self.confirms_blocks.load(Ordering::Relaxed);
        let known = self.moved.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&part);
        let mut task = self.footing.task(self.name(part)).starting_on(home);
        // Beside a GPU, the CPU has blocks of its own: there is nowhere else for them to go alone.
        let stays = home == DeviceName::CPU;
        if stays || (!confirms_blocks && !known) {
            let plain = || work(&x.device(), x.clone());
            let drill = self.footing.drill();
            let tried = match drill.is_empty() {
                true => catch(plain),
                false => catch(|| drill.part(&self.name(part), &home.to_string(), plain)),
            };
            let failure = match tried {
                Ok(Ok(y)) => return Ok(y),
                Ok(Err(error)) => Failure::Error(device_error(error)?),
                Err(panic) => Failure::Panic(panic),
            };
            if stays || lost_its_cache() {
                let mut fault = self.footing.classify(&self.name(part), failure);
                fault.device.get_or_insert_with(|| home.to_string());
                return Err(ModelError::Fault(fault.into()));
            }
            task = task.after_failure(failure);
        }
        let mistake = RefCell::new(None);
        let lost = || {
            let why = "its part of the cache was lost when it failed";
            Fault::new(FaultKind::StateLost, self.name(part), why)
        };
        let segment = |step: &Step<'_>, x: Tensor<2>| -> Result<Ran<T>, BoxError> {
            if lost_its_cache() {
                return Err(lost().into());
            }
            match work(step.device(), x) {
                Ok(value) => {
                    if step.device_name() != home {
                        self.moved
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .entry(part)
                            .or_default();
                    }
                    Ok(Ran { value: Some(value), confirms_blocks })
                }
                Err(error) => match device_error(error) {
                    Ok(error) => Err(error),
                    Err(callers) => {
                        *mistake.borrow_mut() = Some(callers);
                        Ok(Ran { value: None, confirms_blocks: false })
                    }
                },
            }
        };
        let outcome =
            task.run_segment(x, segment).map_err(|fault| ModelError::Fault(fault.into()))?;
        if let Some(fault) = outcome.faults.last() {
            let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
            moved.entry(part).and_modify(|reason| *reason = Some(fault.kind));
        }
        let ran = outcome.value;
        match (ran.value, mistake.into_inner()) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(error),
            (None, None) => Err(ModelError::request("a segment gave nothing")),
        }
    }
}

/// The error of a device, for the guard; or the caller's mistake, which is no fault of the device.
fn device_error(error: ModelError) -> Result<BoxError, ModelError> {
    match error {
        ModelError::Fault(fault) => Ok(fault),
        callers => Err(callers),
    }
}

/// A part of a model that ran on the CPU because its device could not run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPart {
    /// `block 3` or `head`.
    pub name: String,
    /// Why, if it is known.
    pub reason: Option<FaultKind>,
}

/// What a segment gave; nothing if the caller made a mistake.
#[derive(Clone)]
struct Ran<T> {
    value: Option<T>,
    confirms_blocks: bool,
}

impl Confirm<Burn> for Ran<Tensor<2>> {
    fn confirm(&self, operation: &str) -> Result<(), Fault> {
        match &self.value {
            Some(tensor) if self.confirms_blocks => tensor.confirm(operation),
            _ => Ok(()),
        }
    }
}

impl Place<Burn> for Ran<Tensor<2>> {
    fn survey(&self, visit: &mut dyn FnMut(Spot)) {
        self.value.survey(visit);
    }

    fn place(self, target: &Target) -> Self {
        Self { value: self.value.place(target), ..self }
    }
}

/// On the host already.
impl Confirm<Burn> for Ran<Rows> {
    fn confirm(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }
}

impl Place<Burn> for Ran<Rows> {
    fn survey(&self, _visit: &mut dyn FnMut(Spot)) {}

    fn place(self, _target: &Target) -> Self {
        self
    }
}
