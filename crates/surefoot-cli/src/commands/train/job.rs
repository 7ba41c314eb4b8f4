//! What a run of `surefoot train` works on: its configuration, data and checkpoints, and the checkpoint it goes on from.

use std::path::{Path, PathBuf};

use surefoot::device::supervisor;
use surefoot_train::checkpoint::{
    self, CheckpointFolder, Manifest, fresh_folder, has_run, latest_folder,
};
use surefoot_train::config::{self, Config};
use surefoot_train::data::{self, DataSet};

use super::failure::{bad_checkpoint, bad_data, bad_resume, contradiction};
use super::{LATEST, Train};
use crate::exit::Failure;
use crate::terminal::Terminal;

/// What is to be done: a configuration with the keys that flags set, and where it begins.
pub(super) struct Job {
    pub(super) config: Config,
    pub(super) flags: Vec<(String, String)>,
    pub(super) data: DataSet,
    pub(super) checkpoints: CheckpointFolder,
    pub(super) resume: Option<PathBuf>,
}

impl Train {
    /// Resolves configuration, data and checkpoints. A folder for a new run is made only once its
    /// data is known to be usable.
    pub(super) fn job(
        &self,
        config: Option<Config>,
        flags: Vec<(String, String)>,
        folder: &Path,
        terminal: &Terminal,
    ) -> Result<Job, Failure> {
        if let (Some(config), None, None) = (&config, &self.resume, &self.supervised_folder) {
            let data = opened(config, terminal)?;
            let wanted = self.wanted_folder(Some(config));
            let checkpoints =
                CheckpointFolder::fresh(&wanted, config.checkpoint.keep).map_err(bad_checkpoint)?;
            return Ok(Job { config: config.clone(), flags, data, checkpoints, resume: None });
        }
        let keep = config.as_ref().map_or(2, |config| config.checkpoint.keep);
        let checkpoints = CheckpointFolder::new(folder, keep).map_err(bad_checkpoint)?;
        match (self.checkpoint(&checkpoints, terminal)?, config) {
            (Some(path), _) => self.resumed(path, flags, checkpoints, terminal),
            (None, Some(config)) => {
                let data = opened(&config, terminal)?;
                Ok(Job { config, flags, data, checkpoints, resume: None })
            }
            (None, None) => Err(nothing_to_go_on_from(folder)),
        }
    }

    /// The job of a rank that writes no checkpoints of its own, with a folder that stands for theirs.
    pub(super) fn job_in(
        &self,
        scratch: &Path,
        resume: Option<PathBuf>,
        config: Option<Config>,
        flags: Vec<(String, String)>,
        terminal: &Terminal,
    ) -> Result<Job, Failure> {
        let checkpoints = CheckpointFolder::new(scratch, 1).map_err(bad_checkpoint)?;
        match (resume, config) {
            (Some(path), _) => self.resumed(path, flags, checkpoints, terminal),
            (None, Some(config)) => {
                let data = opened(&config, terminal)?;
                Ok(Job { config, flags, data, checkpoints, resume: None })
            }
            (None, None) => Err(nothing_to_go_on_from(scratch)),
        }
    }

    /// Goes on from a checkpoint with its configuration; what contradicts that is refused unless
    /// it is meant.
    fn resumed(
        &self,
        path: PathBuf,
        flags: Vec<(String, String)>,
        checkpoints: CheckpointFolder,
        terminal: &Terminal,
    ) -> Result<Job, Failure> {
        let manifest = checkpoint::read_manifest(&path).map_err(bad_checkpoint)?;
        let file = match &self.config {
            Some(file) => Some(std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("{} can't be read", file.display())).caused_by(&error)
            })?),
            None => None,
        };
        let Manifest { config: stored, flags: stored_flags, data: known, .. } = &manifest;
        let resumed =
            config::resume(stored, stored_flags, file.as_deref(), &flags, self.overriding)
                .map_err(bad_resume)?;
        terminal.note(&format!("the configuration is that of {}", path.display()));
        for difference in &resumed.differs_from_file {
            if let Some(value) = &difference.stored {
                terminal.note(&format!("  {} is {value}, as it was then", difference.key));
            }
        }
        for difference in &resumed.changed {
            terminal.note(&format!("  changed: {difference}"));
        }
        let config = resumed.config;
        let learned = data::open(&config.data, config.seed).map_err(bad_data)?;
        let differences = known.differences(&learned.description);
        let data = match differences.is_empty() {
            true => learned,
            false if self.overriding => {
                data::open_as(&config.data, config.seed, known).map_err(bad_data)?
            }
            false => {
                let place = config.data.path.as_deref().unwrap_or(Path::new("the data"));
                let why = format!(
                    "{} is not what the run was trained on: {}",
                    place.display(),
                    differences.join("; ")
                );
                return Err(contradiction(&why));
            }
        };
        tell_notes(&data, terminal);
        Ok(Job { config, flags: resumed.flags, data, checkpoints, resume: Some(path) })
    }

    /// Where this run's checkpoints go, or where those that it goes on from are.
    pub(super) fn folder(&self, config: Option<&Config>) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.supervised_folder {
            return Ok(folder.clone());
        }
        let wanted = self.wanted_folder(config);
        Ok(match &self.resume {
            Some(path) if path.as_os_str() == LATEST => match self.options.named_folder() {
                // A folder that was named is the one that is meant.
                Some(named) if has_run(named) => named.to_owned(),
                None if config.is_none() => {
                    return Err(Failure::usage("--resume alone doesn't say which run is meant")
                        .hint("name its configuration, its folder (--folder DIR) or a checkpoint: --resume=FILE"));
                }
                _ => latest_folder(&wanted).unwrap_or(wanted),
            },
            Some(path) => match path.parent() {
                // A bare file name is in the folder that the program was started in.
                Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
                Some(parent) => parent.to_owned(),
                None => wanted,
            },
            None => fresh_folder(&wanted),
        })
    }

    pub(super) fn wanted_folder(&self, config: Option<&Config>) -> PathBuf {
        let named = self.options.named_folder().map(Path::to_owned);
        named.or_else(|| config?.checkpoint.folder.clone()).unwrap_or_else(|| {
            let name = self.config.as_deref().and_then(Path::file_stem).unwrap_or_default();
            Path::new("runs").join(name)
        })
    }

    /// The checkpoint to go on from, if one is.
    fn checkpoint(
        &self,
        checkpoints: &CheckpointFolder,
        terminal: &Terminal,
    ) -> Result<Option<PathBuf>, Failure> {
        let named = self.resume.clone().filter(|path| path.as_os_str() != LATEST);
        let restarted = self.supervised_folder.is_some() && supervisor::inherited().attempt > 0;
        if named.is_some() && !restarted {
            return Ok(named);
        }
        if self.resume.is_none() && !restarted {
            return Ok(None);
        }
        let (latest, unreadable) = checkpoints.latest();
        for error in unreadable {
            terminal.note(&format!("skipped: {error}"));
        }
        match latest {
            None if restarted => Ok(named),
            None => Err(nothing_to_go_on_from(checkpoints.folder())),
            found => Ok(found),
        }
    }
}

/// Opens the data of a new run.
fn opened(config: &Config, terminal: &Terminal) -> Result<DataSet, Failure> {
    let data = data::open(&config.data, config.seed).map_err(bad_data)?;
    tell_notes(&data, terminal);
    Ok(data)
}

fn tell_notes(data: &DataSet, terminal: &Terminal) {
    for note in &data.notes {
        terminal.note(note);
    }
}

fn nothing_to_go_on_from(folder: &Path) -> Failure {
    Failure::usage("there is nothing to continue from")
        .because(format!("{} has no checkpoint that can be read", folder.display()))
        .hint("train without --resume, or name a checkpoint: --resume=FILE")
}
