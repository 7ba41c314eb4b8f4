//! The whole way from models to fingerprints and verdicts, on one footing with one journal.
//!
//! A [`Verifier`] opens the footing when the first model has to run; two fingerprints are compared
//! without a device. All models of one verifier share the footing, the memory limit and the
//! observer of the first runner. At most one model is loaded at a time.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use surefoot::device::DeviceName;
use surefoot_models::folder::header::WeightDtype;
use surefoot_models::runner::{RunOutcome, RunRequest, Runner, computes_in};
use surefoot_models::stream::plan::Placement;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{ModelError, Opened};

use crate::calibrate::{self, Pass, PassPrecision, Variations};
use crate::capture::{self, Captures};
use crate::challenge::ChallengeSet;
use crate::challenge_source::ChallengeOptions;
use crate::error::VerifyError;
use crate::fingerprint::{Fingerprint, RunInfo, SketchPolicy};
use crate::identity::{self, Identity};
use crate::noise::{Deviations, Noise, NoiseClass, RunVariant};
use crate::shard::{FingerprintShard, Shard};
use crate::weight_form::{self, WeightForm};

/// Challenges that go through the model at once where its weights are in memory. Shards of whole batches run nothing twice.
pub(crate) const BATCH: usize = 4;
/// Challenges at once where weights are streamed: each batch reads them anew.
const STREAMED_BATCH: usize = 32;

/// Opens the first runner: its footing, memory limit and observer are used for all models.
type OpenRunner<'a> = dyn Fn(&Path) -> Result<Runner, ModelError> + 'a;

/// What is about to happen, for people who wait.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The challenges are fixed; nothing has run yet.
    Challenges(&'a ChallengeSet),
    /// Memory allows only some of the challenges at once.
    Groups {
        /// Challenges at once.
        group: usize,
        /// All challenges.
        challenges: usize,
    },
    /// The reference is run again in other variants to measure its noise.
    Calibration {
        /// How many more passes that takes.
        passes: usize,
    },
    /// An endpoint is asked all challenges.
    Endpoint(&'a str),
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Challenges(set) => write!(
                f,
                "{} challenges of up to {} tokens, commitment {}",
                set.sequences.len(),
                set.longest(),
                set.commitment()
            ),
            Self::Groups { group, challenges } => write!(
                f,
                "memory for {group} of {challenges} challenges at once: weights are read {} times",
                challenges.div_ceil(*group)
            ),
            Self::Calibration { passes } => {
                write!(f, "measuring the noise of the model: {passes} more passes")
            }
            Self::Endpoint(url) => write!(f, "asking {url}"),
        }
    }
}

/// Makes fingerprints and compares them, on one footing.
pub struct Verifier<'a> {
    open_runner: Box<OpenRunner<'a>>,
    progress: Box<dyn Fn(Progress<'_>) + 'a>,
    runners: RefCell<Vec<(PathBuf, Rc<Runner>)>>,
    /// The reference whose weights are rounded as the candidate's are, and how.
    rounding: RefCell<Option<Rounding>>,
}

/// A model whose weights are rounded to the formats in which another has them.
#[derive(Clone, Debug)]
struct Rounding {
    folder: PathBuf,
    like: Opened,
    form: WeightForm,
    /// Programs differ in how they round to these formats.
    is_ambiguous: bool,
}

impl<'a> Verifier<'a> {
    /// `open_runner` opens a model on the footing that all models will run on; it is called at most
    /// once. `progress` is told what is about to happen.
    pub fn new(
        open_runner: impl Fn(&Path) -> Result<Runner, ModelError> + 'a,
        progress: impl Fn(Progress<'_>) + 'a,
    ) -> Self {
        Self {
            open_runner: Box::new(open_runner),
            progress: Box::new(progress),
            runners: RefCell::default(),
            rounding: RefCell::default(),
        }
    }

    /// Has the weights of `reference` rounded to the formats of `candidate` from now on, if that is quantised and built
    /// alike.
    pub(crate) fn round_like(&self, reference: &Path, candidate: &Path) -> Result<(), VerifyError> {
        let like = Opened::new(candidate)?;
        let quantized = like.binding.matrices.iter().any(|it| it.target().is_quantized());
        let runner = self.runner(reference)?;
        let alike = runner.opened().clone().rounded_like(&like).is_some();
        if !quantized || !alike || reference == candidate {
            return Ok(());
        }
        let formats: BTreeSet<String> = identity::dtypes(candidate)?;
        let is_ambiguous = weight_form::is_ambiguous(formats.iter());
        let form = WeightForm::RoundedTo(formats.into_iter().collect());
        let folder = reference.to_owned();
        self.runners.borrow_mut().retain(|(opened, _)| opened != reference);
        // The first runner is what others are opened from.
        self.runners.borrow_mut().insert(0, (PathBuf::new(), runner));
        *self.rounding.borrow_mut() = Some(Rounding { folder, like, form, is_ambiguous });
        Ok(())
    }

    pub(crate) fn tell(&self, progress: Progress<'_>) {
        (self.progress)(progress);
    }

    /// The runner of a model, opened once. The others are unloaded: there may be no memory for two.
    pub(crate) fn runner(&self, folder: &Path) -> Result<Rc<Runner>, VerifyError> {
        let mut runners = self.runners.borrow_mut();
        for (_, other) in runners.iter().filter(|(opened, _)| opened != folder) {
            other.unload();
        }
        if let Some((_, runner)) = runners.iter().find(|(opened, _)| opened == folder) {
            return Ok(Rc::clone(runner));
        }
        let mut runner = match runners.first() {
            Some((_, first)) => first.open_another(folder)?,
            None => (self.open_runner)(folder)?,
        };
        if let Some(rounding) = self.rounding.borrow().as_ref().filter(|it| it.folder == folder) {
            runner = runner.rounded_like(&rounding.like).ok_or_else(|| {
                VerifyError::incomparable("the candidate is built otherwise than the reference")
            })?;
        }
        let runner = Rc::new(runner);
        runners.push((folder.to_owned(), Rc::clone(&runner)));
        Ok(runner)
    }

    /// The fingerprint of a model without its noise: for comparing it with a reference that has
    /// its own.
    pub fn candidate(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: SketchPolicy,
    ) -> Result<Fingerprint, VerifyError> {
        let some = 0..set.sequences.len();
        let (identity, run, captures, noise) = self.run_plain(folder, set, policy, some)?;
        Fingerprint::new(identity, policy, run, set.clone(), captures, noise)
    }

    /// A part of [`candidate`](Self::candidate).
    pub(crate) fn candidate_shard(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: SketchPolicy,
        shard: Shard,
    ) -> Result<FingerprintShard, VerifyError> {
        let some = shard.range(set.sequences.len())?;
        let made = self.run_plain(folder, set, policy, some)?;
        FingerprintShard::new(shard, policy, set, made)
    }

    /// The fingerprint of a model with its noise, measured in other variants and, if
    /// `calibrate_on` names a device of the footing's chain, on that device too.
    pub fn reference(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: SketchPolicy,
        calibrate_on: Option<DeviceName>,
    ) -> Result<Fingerprint, VerifyError> {
        let some = 0..set.sequences.len();
        let made = self.run_calibrated(folder, set, policy, calibrate_on, some)?;
        let (identity, run, captures, noise) = made;
        Fingerprint::new(identity, policy, run, set.clone(), captures, noise)
    }

    /// A part of [`reference`](Self::reference).
    pub(crate) fn reference_shard(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: SketchPolicy,
        calibrate_on: Option<DeviceName>,
        shard: Shard,
    ) -> Result<FingerprintShard, VerifyError> {
        let some = shard.range(set.sequences.len())?;
        self.tell(Progress::Challenges(set));
        let made = self.run_calibrated(folder, set, policy, calibrate_on, some)?;
        FingerprintShard::new(shard, policy, set, made)
    }

    /// Runs some challenges of a set once.
    fn run_plain(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: SketchPolicy,
        some: Range<usize>,
    ) -> Result<Made, VerifyError> {
        let runner = self.runner(folder)?;
        check_vocabulary(runner.opened(), set)?;
        let group = self.group(&runner, set)?;
        let outcome = run_pass(&runner, set, some, policy, &Pass::plain(group), None)?;
        made(runner.opened(), outcome, Noise::default())
    }

    /// Runs some challenges of a set in all variants.
    fn run_calibrated(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: SketchPolicy,
        calibrate_on: Option<DeviceName>,
        some: Range<usize>,
    ) -> Result<Made, VerifyError> {
        let runner = self.runner(folder)?;
        check_vocabulary(runner.opened(), set)?;
        let group = self.group(&runner, set)?;
        let plain = run_pass(&runner, set, some.clone(), policy, &Pass::plain(group), None)?;
        let variations = Variations {
            group,
            smaller_group: (set.sequences.len() > 1).then_some(group.div_ceil(2)),
            is_streamed: plain.plan.mode == Placement::Streamed,
            is_fp32: plain.compute == WeightDtype::F32,
            elsewhere: calibrate_on.map(|device| device.to_string()),
        };
        let trials = calibrate::trials(runner.blueprint(), &variations);
        let passes = trials.iter().map(|trial| trial.passes.len()).sum();
        self.tell(Progress::Calibration { passes });
        let noise = calibrate::calibrate(&plain.value, &trials, |_, pass| {
            let device = device_of(pass, plain.device, calibrate_on)?;
            let outcome = run_pass(&runner, set, some.clone(), policy, pass, device)?;
            Ok::<_, VerifyError>(outcome.value)
        })?;
        let rounding = self.rounding.borrow().clone().filter(|it| it.folder == folder);
        let mut noise = noise;
        if rounding.as_ref().is_some_and(|rounding| rounding.is_ambiguous) {
            // Another program's rounding is about as far from this one's as the exact weights are.
            runner.unload();
            let exact = self.exact(folder)?;
            let exact = run_pass(&exact, set, some, policy, &Pass::plain(group), None)?;
            noise.variants.push(RunVariant {
                name: "exact weights".into(),
                class: NoiseClass::Rounding,
                runs: vec![Deviations::between(&plain.value, &exact.value)],
            });
        }
        let (identity, mut run, captures, noise) = made(runner.opened(), plain, noise)?;
        if let Some(rounding) = rounding {
            run.weights = Some(rounding.form);
        }
        Ok((identity, run, captures, noise))
    }

    /// A runner of `folder` with weights as they are stored.
    fn exact(&self, folder: &Path) -> Result<Runner, VerifyError> {
        let runners = self.runners.borrow();
        let Some((_, first)) = runners.first() else {
            return Err(VerifyError::request("no model was opened"));
        };
        Ok(first.open_another(folder)?.weights(WeightChoice::AsStored))
    }

    /// A fingerprint with its noise, of challenges that `options` describe.
    pub fn fingerprint(
        &self,
        folder: &Path,
        options: &ChallengeOptions,
        calibrate_on: Option<DeviceName>,
    ) -> Result<Fingerprint, VerifyError> {
        let set = options.set(self.runner(folder)?.opened())?;
        self.tell(Progress::Challenges(&set));
        self.reference(folder, &set, options.policy, calibrate_on)
    }

    /// How many challenges go through the model at once. It depends on memory and the model alone, not on how many
    /// challenges there are or how they are split.
    fn group(&self, runner: &Runner, set: &ChallengeSet) -> Result<usize, VerifyError> {
        let challenges = set.sequences.len();
        let work = |count: usize| capture::work(runner.opened(), count, set.longest());
        let streams = runner.plan(&work(BATCH))?.streamed_file_bytes > 0;
        let group = runner.fitting_samples(if streams { STREAMED_BATCH } else { BATCH }, work)?;
        if streams && group < challenges {
            self.tell(Progress::Groups { group, challenges });
        }
        Ok(group)
    }
}

/// The device of a variant that does not run where the plain pass did.
fn device_of(
    pass: &Pass,
    plain: DeviceName,
    calibrate_on: Option<DeviceName>,
) -> Result<Option<DeviceName>, VerifyError> {
    if pass.elsewhere {
        return Ok(calibrate_on);
    }
    if pass.precision != PassPrecision::Bf16 {
        return Ok(None);
    }
    // A device that does not compute in bf16 would give wrong numbers: then the CPU does it.
    Ok((!computes_in(plain, WeightDtype::Bf16)?).then_some(DeviceName::CPU))
}

/// Refuses challenges with tokens that the model does not have.
fn check_vocabulary(opened: &Opened, set: &ChallengeSet) -> Result<(), VerifyError> {
    let vocab = opened.blueprint.vocab;
    let largest = set.sequences.iter().flatten().max().copied().unwrap_or(0);
    if (largest as usize) < vocab {
        return Ok(());
    }
    Err(VerifyError::incomparable(format!(
        "a challenge has token {largest}, but {} has a vocabulary of {vocab}: it belongs to \
         another tokenizer",
        opened.folder.display()
    )))
}

fn run_pass(
    runner: &Runner,
    set: &ChallengeSet,
    some: Range<usize>,
    policy: SketchPolicy,
    pass: &Pass,
    device: Option<DeviceName>,
) -> Result<RunOutcome<Captures>, VerifyError> {
    let all = whole_batches(&some, pass.group, set.sequences.len());
    let (first, sequences) = (all.start, &set.sequences[all.clone()]);
    let work = capture::work(runner.opened(), pass.group, set.longest());
    let compute = match pass.precision {
        PassPrecision::Asked => None,
        PassPrecision::Fp32 => Some(WeightDtype::F32),
        PassPrecision::Bf16 => Some(WeightDtype::Bf16),
    };
    let request = RunRequest::new("fingerprint", work)
        .passes(sequences.len().div_ceil(pass.group))
        .samples(pass.group)
        .streamed(pass.streamed)
        .compute(compute)
        .on(device);
    let mut outcome = runner.run(&request, |attempt| {
        // A lack of memory halves the groups, down to two: products with a single challenge may be
        // summed in another order.
        let group = pass.group.min(attempt.samples_at_once().max(2));
        let (model, between) = (attempt.model(), || attempt.between_parts());
        capture::capture(model, sequences, first, policy.bits, group, pass.disturbance, between)
    })?;
    let wanted = some.start - first..some.end - first;
    keep(&mut outcome.value.sketches, &wanted);
    keep(&mut outcome.value.next, &wanted);
    Ok(outcome)
}

/// The batches of `group` challenges of a set of `all` that `some` are in. A challenge is always run in the same batch, since
/// its numbers depend, in their last bits, on how many rows share a product: so the parts of a set give what the whole gives.
fn whole_batches(some: &Range<usize>, group: usize, all: usize) -> Range<usize> {
    let group = group.max(1);
    some.start / group * group..(some.end.div_ceil(group) * group).min(all)
}

/// Drops what was made of challenges that only share a batch; a model without a head gives no tokens.
fn keep<T>(made: &mut Vec<T>, wanted: &Range<usize>) {
    made.truncate(wanted.end);
    made.drain(..wanted.start.min(made.len()));
}

/// The device that a model ran on, or all that its blocks were laid over, in the order of the blocks: `gpu+cpu`.
fn devices(outcome: &RunOutcome<Captures>) -> String {
    let mut names: Vec<String> = Vec::new();
    for share in &outcome.plan.device_map {
        let name = share.device.to_string();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { outcome.device.to_string() } else { names.join("+") }
}

/// What a fingerprint or a part of one is made of.
type Made = (Identity, RunInfo, Captures, Noise);

fn made(opened: &Opened, outcome: RunOutcome<Captures>, noise: Noise) -> Result<Made, VerifyError> {
    let run = RunInfo {
        device: devices(&outcome),
        precision: match outcome.compute {
            WeightDtype::F32 => "fp32",
            WeightDtype::F16 => "fp16",
            WeightDtype::Bf16 => "bf16",
        }
        .to_owned(),
        placement: match outcome.plan.mode {
            Placement::Resident => "resident",
            Placement::Mixed => "mixed",
            Placement::Streamed => "streamed",
        }
        .to_owned(),
        weights: match opened.weights() {
            WeightChoice::AsStored => None,
            choice => Some(WeightForm::Quantized(choice)),
        },
    };
    Ok((Identity::read(opened)?, run, outcome.value, noise))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_run_in_the_same_batch_in_every_part_of_its_set() {
        assert_eq!(whole_batches(&(0..7), 4, 7), 0..7);
        assert_eq!(whole_batches(&(5..6), 4, 7), 4..7);
        assert_eq!(whole_batches(&(3..5), 4, 9), 0..8);
        assert_eq!(whole_batches(&(4..8), 4, 32), 4..8);
    }

    #[test]
    fn only_what_was_asked_for_is_kept() {
        let mut made = vec![4, 5, 6];
        keep(&mut made, &(1..2));
        assert_eq!(made, [5]);
        let mut nothing: Vec<u32> = Vec::new();
        keep(&mut nothing, &(1..2));
        assert!(nothing.is_empty());
    }
}
