//! The model that a user names: a model folder, or a checkpoint of `surefoot train`. A GPT that was trained here is exported to
//! a temporary folder for as long as the command runs; a fine-tuned model is its published folder with its adapter.
//!
//! A temporary folder is removed when the command ends, and also when it is interrupted.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use surefoot_models::Opened;
use surefoot_models::adapter::{self, Adapter};
use surefoot_train::checkpoint;
use surefoot_train::config::{Config, ModelConfig, Tune};
use surefoot_train::export::{self, ExportError, ExportFormat};
use tempfile::TempDir;

use crate::commands::export::failed;
use crate::commands::train::failure::{bad_checkpoint, bad_config};
use crate::exit::{Exit, Failure};

/// Temporary folders that an interrupted command has to remove.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Held while files are written to a temporary folder: a folder that is removed meanwhile would come back.
static WRITING: Mutex<()> = Mutex::new(());
/// How long an interrupted command waits for them.
const LONGEST_WRITE: Duration = Duration::from_secs(5);
/// Set when the command ends in order after a signal, so that the folders are removed on its way out.
static ENDS_IN_ORDER: AtomicBool = AtomicBool::new(false);

/// A model folder. A temporary one is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ModelFolder {
    path: PathBuf,
    adapter: Option<PathBuf>,
    temporary: Option<TempDir>,
}

impl Drop for ModelFolder {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // An interrupt that comes meanwhile waits until the folder is gone.
            let mut listed = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
            let path = temporary.path().to_owned();
            drop(temporary);
            listed.retain(|other| *other != path);
        }
    }
}

impl ModelFolder {
    /// The folder of what was named.
    pub(crate) fn of(named: &Path) -> Result<Self, Failure> {
        if !is_checkpoint(named) {
            return Ok(Self { path: named.to_owned(), adapter: None, temporary: None });
        }
        let manifest = checkpoint::read_manifest(named).map_err(bad_checkpoint)?;
        let config = Config::from_entries(&manifest.config, &[]).map_err(bad_config)?;
        let temporary = temporary()?;
        let into = temporary.path().join(named.file_stem().unwrap_or_default());
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, adapter) = match &config.model {
            ModelConfig::Pretrained(model) if model.tune == Tune::Lora => {
                export::export(named, ExportFormat::Peft, &into).map_err(not_run(named))?;
                (model.path.clone(), Some(into))
            }
            _ => {
                export::export(named, ExportFormat::HuggingFace, &into).map_err(not_run(named))?;
                (into, None)
            }
        };
        Ok(Self { path, adapter, temporary: Some(temporary) })
    }

    /// The folder of what was named, to be run with an adapter.
    pub(crate) fn adapted(named: &Path, adapter: Option<&Path>) -> Result<Self, Failure> {
        let mut folder = Self::of(named)?;
        if let Some(adapter) = adapter {
            if folder.adapter.is_some() {
                let what = format!("{} is a fine-tuned model already", named.display());
                return Err(Failure::usage(what).hint("name the published model's folder"));
            }
            folder.adapter = Some(adapter.to_owned());
        }
        Ok(folder)
    }

    /// The same with its adapter merged into the weights, in a temporary folder.
    pub(crate) fn merged(self) -> Result<Self, Failure> {
        let Some(adapter) = &self.adapter else { return Ok(self) };
        let opened = Opened::new(&self.path)?;
        let adapter = Adapter::read(adapter, &opened)?;
        let temporary = temporary()?;
        let path = temporary.path().join(self.path.file_name().unwrap_or_default());
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::create_dir(&path).map_err(|error| {
            Failure::usage("there is no room for a temporary folder").caused_by(&error)
        })?;
        adapter::merge(&opened, &adapter, &path)?;
        Ok(Self { path, adapter: None, temporary: Some(temporary) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The adapter to run the model with.
    pub(crate) fn adapter(&self) -> Option<&Path> {
        self.adapter.as_deref()
    }
}

/// Why a checkpoint can't be run as a model of text.
fn not_run(named: &Path) -> impl Fn(ExportError) -> Failure {
    move |error| match error {
        ExportError::Unsupported { model, .. } => Failure::usage(format!(
            "{} is a checkpoint of kind {model}, not a text model",
            named.display()
        ))
        .hint("surefoot predict CHECKPOINT INPUT... predicts with it"),
        error => failed(error),
    }
}

/// A temporary folder that is removed on Ctrl-C too.
fn temporary() -> Result<TempDir, Failure> {
    static LISTEN: Once = Once::new();
    let temporary = tempfile::Builder::new().prefix("surefoot-").tempdir().map_err(|error| {
        Failure::usage("there is no room for a temporary folder").caused_by(&error)
    })?;
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).push(temporary.path().to_owned());
    LISTEN.call_once(|| {
        // A command that listens itself ends in order, and removes the folder then.
        let _listening = ctrlc::set_handler(|| {
            if !ENDS_IN_ORDER.load(Ordering::Relaxed) {
                let begun = Instant::now();
                // Kept to the end, so that nothing is written after the folders are gone.
                let mut writing = WRITING.try_lock();
                while writing.is_err() && begun.elapsed() < LONGEST_WRITE {
                    std::thread::sleep(Duration::from_millis(10));
                    writing = WRITING.try_lock();
                }
                for path in TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                    let _removed = std::fs::remove_dir_all(path);
                }
                std::process::exit(Exit::Interrupted as i32);
            }
        });
    });
    Ok(temporary)
}

/// Says that this command answers signals itself from now on.
pub(crate) fn ends_in_order() {
    ENDS_IN_ORDER.store(true, Ordering::Relaxed);
}

/// Whether a name is that of a checkpoint file; model folders hold such files, but are none.
pub(crate) fn is_checkpoint(named: &Path) -> bool {
    named.is_file() && named.extension().is_some_and(|extension| extension == "safetensors")
}
