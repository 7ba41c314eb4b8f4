//! A checkpoint as a folder that other programs read: a GPT as a Hugging Face folder, which
//! transformers and the model commands of Surefoot open, and an MLP or CNN as an ONNX file with
//! its normalisation and class names inside.
//!
//! A folder is written under a temporary name beside its place and renamed, so that it is there
//! whole or not at all. Nothing that exists is overwritten.

mod hf;
mod onnx;
mod onnx_proto;
mod pretrained;

use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::Device;

use crate::checkpoint::{self, CheckpointError, Manifest};
use crate::config::{Config, ConfigError, ModelConfig};
use crate::data::DataDescription;
use crate::model::{Builtin, BuiltinError};
use crate::parameters::{self, Shape};

/// What other programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// `config.json`, `model.safetensors` and a tokenizer, as transformers reads them.
    HuggingFace,
    /// `model.onnx`.
    Onnx,
    /// `adapter_config.json` and `adapter_model.safetensors`, as PEFT reads them.
    Peft,
}

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The checkpoint can't be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its configuration can't be read.
    #[error("{}: its configuration can't be read", path.display())]
    Config {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// The pretrained model that was trained can't be opened.
    #[error(transparent)]
    Model(#[from] BuiltinError),
    /// The format has no form for this model.
    #[error("a model of kind {model} can't be exported {format}")]
    Unsupported {
        /// The kind of the model.
        model: &'static str,
        /// The format, in words.
        format: &'static str,
        /// The format that fits.
        instead: ExportFormat,
    },
    /// There is something at the destination.
    #[error("{} exists and is not empty", folder.display())]
    Exists {
        /// The folder.
        folder: PathBuf,
    },
    /// A tensor that the model must have is missing in the checkpoint.
    #[error("the checkpoint has no tensor {name}")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A file can't be written.
    #[error("{} can't be written", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A checkpoint's weights and what they mean.
struct Trained {
    config: Config,
    data: DataDescription,
    model: Builtin,
    shapes: Vec<Shape>,
    values: Vec<Vec<f32>>,
}

impl Trained {
    fn read(path: &Path) -> Result<Self, ExportError> {
        let manifest: Manifest = checkpoint::read_manifest(path)?;
        let config = Config::from_entries(&manifest.config, &[])
            .map_err(|source| ExportError::Config { path: path.to_owned(), source })?;
        let data = manifest.data;
        let model = Builtin::new(&config.model, data.form, config.seed, &Device::flex())?;
        let shapes = parameters::shapes(&model);
        let (held, _) = checkpoint::read(path, &shapes)?;
        Ok(Self { config, data, model, shapes, values: held.values })
    }

    /// A tensor's dimensions and numbers, by its path in the model.
    fn tensor(&self, name: &str) -> Result<(&[usize], &[f32]), ExportError> {
        // The path begins with the kind of the model: `Mlp.layers.0.weight`.
        let path = |shape: &Shape| shape.name.split_once('.').map(|(_, path)| path == name);
        let at = self.shapes.iter().position(|shape| path(shape) == Some(true));
        let at = at.ok_or_else(|| ExportError::Missing { name: name.to_owned() })?;
        Ok((&self.shapes[at].dims, &self.values[at]))
    }
}

/// Writes a checkpoint into a new folder; returns the files that are in it.
pub fn export(
    checkpoint: &Path,
    format: ExportFormat,
    folder: &Path,
) -> Result<Vec<PathBuf>, ExportError> {
    refuse_existing(folder)?;
    let trained = Trained::read(checkpoint)?;
    if let ModelConfig::Pretrained(config) = &trained.config.model {
        return pretrained::export(&trained, config, format, folder);
    }
    let unsupported = |model, format, instead| ExportError::Unsupported { model, format, instead };
    let files = match (format, &trained.config.model) {
        (ExportFormat::HuggingFace, ModelConfig::Gpt { .. }) => hf::files(&trained)?,
        (ExportFormat::Onnx, ModelConfig::Mlp { .. } | ModelConfig::Cnn { .. }) => {
            vec![("model.onnx", onnx::file(&trained)?)]
        }
        (ExportFormat::HuggingFace, ModelConfig::Mlp { .. }) => {
            return Err(unsupported("mlp", "as a Hugging Face folder", ExportFormat::Onnx));
        }
        (ExportFormat::HuggingFace, ModelConfig::Cnn { .. }) => {
            return Err(unsupported("cnn", "as a Hugging Face folder", ExportFormat::Onnx));
        }
        (ExportFormat::Peft, ModelConfig::Mlp { .. } | ModelConfig::Cnn { .. }) => {
            return Err(unsupported("mlp or cnn", "as an adapter", ExportFormat::Onnx));
        }
        (ExportFormat::Peft, ModelConfig::Gpt { .. }) => {
            return Err(unsupported("gpt", "as an adapter", ExportFormat::HuggingFace));
        }
        (_, ModelConfig::Pretrained(_)) => {
            return Err(unsupported("pretrained", "in this way", ExportFormat::Peft));
        }
        (ExportFormat::Onnx, ModelConfig::Gpt { .. }) => {
            return Err(unsupported("gpt", "to ONNX", ExportFormat::HuggingFace));
        }
    };
    write_folder(folder, &files)
}

fn refuse_existing(folder: &Path) -> Result<(), ExportError> {
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ExportError::Exists { folder: folder.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(ExportError::Io { path: folder.to_owned(), source }),
    }
}

fn write_folder(folder: &Path, files: &[(&str, Vec<u8>)]) -> Result<Vec<PathBuf>, ExportError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| ExportError::Io { path, source }
    };
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(failed(parent))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".export-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The usual rights of a new folder, not those of a private one.
        builder.permissions(std::fs::Permissions::from_mode(0o777));
    }
    let temporary = builder.tempdir_in(parent).map_err(failed(parent))?;
    for (name, bytes) in files {
        let path = temporary.path().join(name);
        std::fs::write(&path, bytes).map_err(failed(&path))?;
        std::fs::File::open(&path).and_then(|file| file.sync_all()).map_err(failed(&path))?;
    }
    // An empty folder may be there; Windows does not rename over it.
    if folder.is_dir() {
        std::fs::remove_dir(folder).map_err(failed(folder))?;
    }
    std::fs::rename(temporary.path(), folder).map_err(failed(folder))?;
    // It has another name now: there is nothing to remove.
    let _renamed = temporary.keep();
    Ok(files.iter().map(|(name, _)| folder.join(name)).collect())
}
