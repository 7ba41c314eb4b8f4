//! What the commands that fingerprint a model share: the options of challenges, the passes, and
//! the refusals.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use surefoot::device::{DeviceName, Selector};
use surefoot::place::Precision;
use surefoot_models::folder::header::Dtype;
use surefoot_models::generate::text::Texts;
use surefoot_models::stream::plan::Placement;
use surefoot_models::{ModelError, Opened};
use surefoot_verify::calibrate::{self, Pass, PassPrecision, Variations};
use surefoot_verify::capture::{self, Captures};
use surefoot_verify::challenge::{self, ChallengeSet};
use surefoot_verify::fingerprint::{Fingerprint, Policy, RunInfo};
use surefoot_verify::identity::Identity;
use surefoot_verify::noise::Noise;
use surefoot_verify::seal::SecretKey;
use surefoot_verify::site::SiteSelection;
use surefoot_verify::sketch;
use surefoot_verify::{StatsError, VerifyError};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::{ModelRun, Way};
use crate::terminal::Terminal;

impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Model(error) => error.into(),
            VerifyError::Incomparable(why) => {
                Self::usage("the two can't be compared, so there is no verdict").because(why)
            }
            other => Self::usage(other.to_string()),
        }
    }
}

impl From<StatsError> for Failure {
    fn from(error: StatsError) -> Self {
        VerifyError::from(error).into()
    }
}

/// What models are asked, and what is kept of their answers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Challenges and sketches")]
pub(crate) struct ChallengeArgs {
    /// Make the challenges from the key in this file (64 hexadecimal letters), not the usual one
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Name the run: another name, other challenges
    #[arg(long, value_name = "TEXT", default_value = "library")]
    run_id: String,
    /// How many challenges
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    challenges: usize,
    /// The tokens of a challenge
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    tokens: usize,
    /// Take the lines of this file as challenges instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_file", "run_id", "challenges", "tokens"])]
    prompts: Option<PathBuf>,
    /// Bits of a sketch: a power of two from 1024 to 65536
    #[arg(long, value_name = "COUNT", default_value_t = sketch::BITS)]
    bits: usize,
    /// Which sites are kept
    #[arg(long, value_enum, value_name = "WHICH", default_value = "all")]
    sites: SitesArg,
    /// Learn the noise on this device as well, for example gpu
    #[arg(long, value_name = "NAMES")]
    calibrate_on: Option<Selector>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SitesArg {
    /// Every block boundary
    All,
    /// Where behaviour changes most
    Auto,
}

/// Whether the challenges may be known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultKey {
    /// Everyone's, so that fingerprints can be compared.
    Public,
    /// Nobody's, so that no model can be prepared for it.
    Fresh,
}

impl ChallengeArgs {
    pub(crate) fn policy(&self) -> Result<Policy, Failure> {
        sketch::check_bits(self.bits)?;
        let sites = match self.sites {
            SitesArg::All => SiteSelection::All,
            SitesArg::Auto => SiteSelection::Auto,
        };
        Ok(Policy { bits: self.bits, sites })
    }

    /// The challenges for a model.
    pub(crate) fn set(&self, folder: &Path, default: DefaultKey) -> Result<ChallengeSet, Failure> {
        let opened = Opened::new(folder)?;
        let blueprint = &opened.blueprint;
        if let Some(prompts) = &self.prompts {
            return own_prompts(prompts, folder, blueprint.vocab, blueprint.max_positions);
        }
        let key = match (&self.key_file, default) {
            (Some(file), _) => read_key(file)?,
            (None, DefaultKey::Public) => challenge::public_key(),
            (None, DefaultKey::Fresh) => challenge::fresh_key()?,
        };
        let tokens = self.tokens.min(blueprint.max_positions);
        Ok(ChallengeSet::keyed(key, &self.run_id, blueprint.vocab, self.challenges, tokens)?)
    }
}

fn read_key(file: &Path) -> Result<[u8; 32], Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("the key {} can't be read", file.display())).caused_by(&error)
    })?;
    surefoot_verify::hex::decode32(text.trim()).map_err(|_| {
        Failure::usage(format!("{} holds no key", file.display()))
            .because("a key is 64 hexadecimal letters, 0-9 and a-f")
            .hint(format!("openssl rand -hex 32 > {}", file.display()))
    })
}

fn own_prompts(
    file: &Path,
    folder: &Path,
    vocab: usize,
    most: usize,
) -> Result<ChallengeSet, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("the prompts {} can't be read", file.display())).caused_by(&error)
    })?;
    let mut texts = Texts::open(folder, vocab)?;
    texts.truncate(most)?;
    let mut sequences = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let ids = texts.encode(line)?;
        if ids.is_empty() {
            return Err(Failure::usage(format!(
                "line {} of {} has no tokens",
                number + 1,
                file.display()
            )));
        }
        sequences.push(ids);
    }
    Ok(ChallengeSet::prompts(sequences)?)
}

/// Signing what is written.
#[derive(Clone, Debug, Args)]
pub(crate) struct SignArgs {
    /// Sign the file with the Ed25519 key in this file
    #[arg(long, value_name = "KEYFILE")]
    sign: Option<PathBuf>,
    /// Make a new key, write it to this file and sign with it
    #[arg(long, value_name = "KEYFILE", conflicts_with = "sign")]
    new_key: Option<PathBuf>,
}

impl SignArgs {
    pub(crate) fn key(&self, terminal: &Terminal) -> Result<Option<SecretKey>, Failure> {
        if let Some(file) = &self.new_key {
            let key = SecretKey::fresh()?;
            key.write(file)?;
            terminal.note(&format!(
                "{}: a new key, public half {}",
                file.display(),
                key.public_key()
            ));
            return Ok(Some(key));
        }
        Ok(self.sign.as_deref().map(SecretKey::read).transpose()?)
    }
}

/// How a pass was run in the end.
#[derive(Clone, Copy)]
struct Ran {
    placement: Placement,
    compute: Dtype,
}

/// Makes fingerprints on one footing.
pub(crate) struct Maker<'a> {
    args: &'a FootingArgs,
    global: &'a Global,
    terminal: &'a Terminal,
    run: ModelRun<'a>,
}

impl<'a> Maker<'a> {
    pub(crate) fn new(
        args: &'a FootingArgs,
        global: &'a Global,
        terminal: &'a Terminal,
    ) -> Result<Self, Failure> {
        Ok(Self { args, global, terminal, run: ModelRun::new(args, global, terminal)? })
    }

    /// Says what will be asked, before anything runs.
    pub(crate) fn announce(&self, set: &ChallengeSet) {
        self.terminal.note(&format!(
            "{} challenges of up to {} tokens, commitment {}",
            set.sequences.len(),
            set.longest(),
            set.commitment()
        ));
    }

    /// The fingerprint of a model that is to be compared with one that has its noise.
    pub(crate) fn candidate(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: Policy,
    ) -> Result<Fingerprint, Failure> {
        self.check(folder, set)?;
        let group = self.group(folder, set)?;
        let (captures, ran) = self.pass(folder, set, policy, &Pass::plain(group))?;
        self.assemble(folder, set, policy, captures, Noise::default(), ran)
    }

    /// The fingerprint of a model with its noise.
    pub(crate) fn reference(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: Policy,
        options: &ChallengeArgs,
    ) -> Result<Fingerprint, Failure> {
        self.check(folder, set)?;
        let group = self.group(folder, set)?;
        let (captures, ran) = self.pass(folder, set, policy, &Pass::plain(group))?;
        let with = |change: &dyn Fn(&mut FootingArgs)| {
            let mut args = self.args.clone();
            change(&mut args);
            args
        };
        let elsewhere = options
            .calibrate_on
            .as_ref()
            .map(|device| with(&|args: &mut FootingArgs| args.device = device.clone()));
        let elsewhere = match &elsewhere {
            Some(args) => Some(ModelRun::new(args, self.global, self.terminal)?),
            None => None,
        };
        // A device that doesn't compute in bf16 would give wrong numbers: then the CPU does it.
        let here = with(&|args: &mut FootingArgs| args.precision = Precision::Bf16);
        let mut on_cpu = here.clone();
        on_cpu.device = Selector::only(DeviceName::CPU);
        let in_bf16 = ModelRun::new(&here, self.global, self.terminal);
        let in_bf16 = match in_bf16.and_then(|run| Ok((run.footing.precision()?, run))) {
            Ok((_, run)) => run,
            Err(_) => ModelRun::new(&on_cpu, self.global, self.terminal)?,
        };
        let variations = Variations {
            group,
            is_streamed: ran.placement == Placement::Streamed,
            is_fp32: ran.compute == Dtype::F32,
            elsewhere: match &elsewhere {
                Some(run) => Some(run.footing.device()?.name().to_string()),
                None => None,
            },
        };
        let trials = calibrate::trials(&Opened::new(folder)?.blueprint, &variations);
        let passes: usize = trials.iter().map(|trial| trial.passes.len()).sum();
        self.terminal.note(&format!("learning the noise of the model: {passes} more passes"));
        let noise = calibrate::calibrate(&captures, &trials, |_, pass| {
            let run = match (&elsewhere, pass.precision) {
                (_, PassPrecision::Bf16) => &in_bf16,
                (Some(elsewhere), _) if pass.elsewhere => elsewhere,
                _ => &self.run,
            };
            self.pass_on(run, folder, set, policy, pass).map(|(captures, _)| captures)
        })?;
        self.assemble(folder, set, policy, captures, noise, ran)
    }

    /// Refuses challenges that the model can't be asked.
    fn check(&self, folder: &Path, set: &ChallengeSet) -> Result<(), Failure> {
        let opened = Opened::new(folder)?;
        let vocab = opened.blueprint.vocab;
        let largest = set.sequences.iter().flatten().max().copied().unwrap_or(0);
        if largest as usize >= vocab {
            return Err(VerifyError::Incomparable(format!(
                "a challenge has token {largest}, but {} has a vocabulary of {vocab}: it is \
                 another tokenizer's",
                folder.display()
            ))
            .into());
        }
        Ok(())
    }

    /// How many challenges can go through at once; one if none can, so that the refusal says
    /// what one needs.
    fn group(&self, folder: &Path, set: &ChallengeSet) -> Result<usize, Failure> {
        let opened = self.run.placed(Opened::new(folder)?)?;
        let mut group = set.sequences.len();
        loop {
            let work = capture::work(&opened, group, set.longest());
            if group == 1 || opened.plan_here(&work, self.run.budget()).fits {
                break;
            }
            group = group.div_ceil(2);
        }
        if group < set.sequences.len() {
            self.terminal.note(&format!(
                "memory for {group} of {} challenges at once: weights are read {} times",
                set.sequences.len(),
                set.sequences.len().div_ceil(group)
            ));
        }
        Ok(group)
    }

    fn pass(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: Policy,
        pass: &Pass,
    ) -> Result<(Captures, Ran), Failure> {
        self.pass_on(&self.run, folder, set, policy, pass)
    }

    fn pass_on(
        &self,
        run: &ModelRun<'_>,
        folder: &Path,
        set: &ChallengeSet,
        policy: Policy,
        pass: &Pass,
    ) -> Result<(Captures, Ran), Failure> {
        let work = capture::work(&Opened::new(folder)?, pass.group, set.longest());
        let passes = set.sequences.len().div_ceil(pass.group);
        // Every device computes in fp32; for bf16 the footing was asked.
        let compute = (pass.precision == PassPrecision::Fp32).then_some(Dtype::F32);
        let way = Way { streamed: pass.streamed, compute };
        run.run_as(way, "fingerprint", folder, &work, passes, |model, plan| {
            let captures =
                capture::capture(model, &set.sequences, policy.bits, pass.group, pass.disturbance)?;
            Ok::<_, ModelError>((captures, Ran { placement: plan.mode, compute: model.compute() }))
        })
    }

    fn assemble(
        &self,
        folder: &Path,
        set: &ChallengeSet,
        policy: Policy,
        captures: Captures,
        noise: Noise,
        ran: Ran,
    ) -> Result<Fingerprint, Failure> {
        let identity = Identity::read(&Opened::new(folder)?)?;
        let run = RunInfo {
            device: self.run.footing.device()?.name().to_string(),
            precision: match ran.compute {
                Dtype::F32 => "fp32",
                Dtype::F16 => "fp16",
                Dtype::Bf16 => "bf16",
            }
            .to_owned(),
            placement: match ran.placement {
                Placement::Resident => "resident",
                Placement::Mixed => "mixed",
                Placement::Streamed => "streamed",
            }
            .to_owned(),
        };
        Ok(Fingerprint::new(identity, policy, run, set.clone(), captures, noise)?)
    }
}

/// How a verdict ends the program.
pub(crate) fn exit_of(verdict: surefoot_verify::decision::Verdict) -> Exit {
    use surefoot_verify::decision::Verdict;
    match verdict {
        Verdict::Same => Exit::Done,
        Verdict::Different => Exit::No,
        Verdict::Undecided => Exit::Undecided,
    }
}
