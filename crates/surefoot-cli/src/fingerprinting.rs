//! What the commands that fingerprint models share: the options of challenges and signatures, and
//! the verifier that the options describe.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use surefoot::device::{DeviceName, Selector};
use surefoot::journal::Journal;
use surefoot::{Fault, FaultKind, Footing};
use surefoot_models::ModelError;
use surefoot_models::runner::Runner;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_verify::challenge_source::{ChallengeKey, ChallengeOptions, ChallengeSource};
use surefoot_verify::fingerprint::SketchPolicy;
use surefoot_verify::seal::SecretKey;
use surefoot_verify::shard::Shard;
use surefoot_verify::site::SiteSelection;
use surefoot_verify::sketch;
use surefoot_verify::verifier::Verifier;
use surefoot_verify::{StatsError, VerifyError};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_progress::ProgressObserver;
use crate::model_run;
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
    /// Generate the challenges from the key in this file (64 hexadecimal digits) instead of the public one
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// A name for the run; another name gives other challenges
    #[arg(long, value_name = "TEXT", default_value = "library")]
    run_id: String,
    /// The number of challenges
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    challenges: usize,
    /// The number of tokens of a challenge
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
    /// Run only this part of the challenges, for example 2/8; `surefoot merge` joins all parts
    #[arg(long, value_name = "INDEX/COUNT")]
    pub(crate) shard: Option<Shard>,
    /// Measure the noise on this device as well, for example gpu
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

impl ChallengeArgs {
    /// The challenges, made from the key of `--key-file` or else from `default`.
    pub(crate) fn options(&self, default: ChallengeKey) -> Result<ChallengeOptions, Failure> {
        sketch::check_bits(self.bits)?;
        let sites = match self.sites {
            SitesArg::All => SiteSelection::All,
            SitesArg::Auto => SiteSelection::Auto,
        };
        let source = match (&self.prompts, &self.key_file) {
            (Some(file), _) => ChallengeSource::Prompts(file.clone()),
            (None, file) => ChallengeSource::Keyed {
                key: file.as_deref().map_or(Ok(default), ChallengeKey::read)?,
                run_id: self.run_id.clone(),
                count: self.challenges,
                tokens: self.tokens,
            },
        };
        Ok(ChallengeOptions { source, policy: SketchPolicy { bits: self.bits, sites } })
    }

    /// Whether every machine with the same options makes the same challenges, though the usual key is
    /// a new one each time.
    pub(crate) fn are_repeatable(&self) -> bool {
        self.prompts.is_some() || self.key_file.is_some()
    }

    /// The other device that noise is measured on.
    pub(crate) fn calibration_device(&self) -> Option<DeviceName> {
        match self.calibrate_on.as_ref()? {
            Selector::Chain(names) | Selector::Together { names, .. } => names.first().copied(),
            Selector::Auto => None,
        }
    }
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

/// The verifier that the options describe: one footing and one journal for all models.
pub(crate) struct Verification<'a> {
    pub(crate) verifier: Verifier<'a>,
    journal: Journal,
    terminal: &'a Terminal,
}

impl<'a> Verification<'a> {
    /// No device is opened before a model has to run. `calibrate_on` joins the footing's chain.
    pub(crate) fn new(
        args: &'a FootingArgs,
        weights: WeightChoice,
        calibrate_on: Option<DeviceName>,
        global: &Global,
        terminal: &'a Terminal,
    ) -> Result<Self, Failure> {
        model_run::with_one_arena()?;
        let journal = global.open_journal()?;
        let builder =
            args.model_footing(journal.clone())?.precision(model_run::precision(args.precision));
        let builder = std::cell::Cell::new(Some(builder));
        let quiet = global.quiet;
        let open = move |folder: &std::path::Path| {
            let builder = builder
                .take()
                .ok_or_else(|| ModelError::Request("the devices were opened before".to_owned()))?;
            let chain = chain(&args.device, calibrate_on)?;
            let footing: Footing = builder.devices(chain).build()?;
            Ok(Runner::open(Arc::new(footing), folder)?
                .weights(weights)
                .observer(Arc::new(ProgressObserver::new(quiet))))
        };
        let verifier = Verifier::new(open, move |progress| terminal.note(&progress.to_string()));
        Ok(Self { verifier, journal, terminal })
    }

    /// Flushes the journal after work that may have failed.
    pub(crate) fn finished<T>(&self, result: Result<T, VerifyError>) -> Result<T, Failure> {
        crate::args::flush(&self.journal, self.terminal);
        Ok(result?)
    }
}

/// The devices of `selector`, with the ones behind them that single passes are sent to by name: the
/// CPU, for bf16 where the device does not compute in it, and the one of `--calibrate-on`.
fn chain(selector: &Selector, calibrate_on: Option<DeviceName>) -> Result<Selector, Fault> {
    let mut names = match selector {
        Selector::Chain(names) => names.clone(),
        Selector::Together { names, .. } => {
            return match calibrate_on.filter(|name| !names.contains(name)) {
                None => Ok(selector.clone()),
                Some(other) => Err(Fault::new(
                    FaultKind::DriverOrInit,
                    "select",
                    format!("{other} is none of {selector}, so noise can't be measured on it"),
                )
                .advise("name one of the devices of --device in --calibrate-on")),
            };
        }
        Selector::Auto if calibrate_on.is_none() => return Ok(Selector::Auto),
        Selector::Auto => {
            let automatic = Footing::builder().build()?;
            automatic.health().into_iter().map(|(name, _)| name).collect()
        }
    };
    for name in calibrate_on.into_iter().chain([DeviceName::CPU]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(Selector::Chain(names))
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
