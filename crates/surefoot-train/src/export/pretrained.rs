//! A fine-tuned model for other programs: its adapter in PEFT's format, or a whole model folder.
//!
//! A folder has the adapter merged into the weights, in the dtypes of the model's files; or, where tensors were trained themselves,
//! all tensors in fp32. The configuration, tokenizer and template of the published model are copied.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Map, Value, json};
use surefoot_models::adapter;
use surefoot_models::folder::checkpoint::Checkpoint;

use super::{ExportError, ExportFormat, Trained, write_folder};
use crate::config::PretrainedConfig;
use crate::model::{Builtin, BuiltinError, Pretrained};
use crate::parameters;

pub(super) fn export(
    trained: &Trained,
    config: &PretrainedConfig,
    format: ExportFormat,
    folder: &Path,
) -> Result<Vec<PathBuf>, ExportError> {
    let unsupported =
        |format, instead| ExportError::Unsupported { model: "pretrained", format, instead };
    let values = trained.values.iter().map(|numbers| {
        let data = TensorData::new(numbers.clone(), [numbers.len()]);
        Tensor::from_data(data, &Device::flex())
    });
    let model = parameters::with_values(trained.model.clone(), values.collect());
    let Builtin::Pretrained(model) = model else {
        return Err(unsupported("in this way", ExportFormat::HuggingFace));
    };
    let classifies = trained.data.form.classes().is_some();
    match (format, model.adapter(config)) {
        (ExportFormat::Onnx, _) => Err(unsupported("to ONNX", ExportFormat::HuggingFace)),
        (ExportFormat::Peft, Some(adapter)) if !classifies => {
            let files = adapter.files().map_err(BuiltinError::from)?;
            write_folder(folder, &files)
        }
        (ExportFormat::Peft, _) => Err(unsupported(
            "as an adapter (it has trained tensors beside low-rank pairs)",
            ExportFormat::HuggingFace,
        )),
        (ExportFormat::HuggingFace, Some(adapter)) if !classifies => {
            let opened = model.opened();
            Ok(adapter::merge(opened, &adapter, folder).map_err(BuiltinError::from)?)
        }
        (ExportFormat::HuggingFace, _) => whole(trained, &model, folder),
    }
}

/// A tensor as safetensors have it: dtype, shape, bytes.
type Stored = (safetensors::Dtype, Vec<usize>, Vec<u8>);

fn whole(
    trained: &Trained,
    model: &Pretrained,
    folder: &Path,
) -> Result<Vec<PathBuf>, ExportError> {
    let source = &model.opened().folder;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source: std::io::Error| ExportError::Io { path, source }
    };
    let tensors = tensors(trained, model)?;
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
        view.map(|view| (name.as_str(), view))
    });
    let unwritable = |error: safetensors::SafeTensorError| ExportError::Io {
        path: folder.to_owned(),
        source: std::io::Error::other(error),
    };
    let views = views.collect::<Result<Vec<_>, _>>().map_err(unwritable)?;
    let format = [("format".to_owned(), "pt".to_owned())].into();
    let weights = safetensors::serialize(views, Some(format)).map_err(unwritable)?;
    let mut files: Vec<(String, Vec<u8>)> = vec![("model.safetensors".to_owned(), weights)];
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(source).map_err(io(source))? {
        names.push(entry.map_err(io(source))?.path());
    }
    names.sort();
    for path in names {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = [".json", ".jinja", ".txt", ".model"].iter().any(|end| name.ends_with(end));
        if !wanted || name.ends_with(".index.json") || !path.is_file() {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(io(&path))?;
        files.push(match name == "config.json" {
            true => (name, settings(&bytes, &trained.data.classes)),
            false => (name, bytes),
        });
    }
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    write_folder(folder, &files)
}

/// All tensors of the folder by their names: those that were trained, and the others as they are.
fn tensors(trained: &Trained, model: &Pretrained) -> Result<BTreeMap<String, Stored>, ExportError> {
    let checkpoint = Checkpoint::open(&model.opened().folder).map_err(BuiltinError::from)?;
    let prefix = model.opened().blueprint.prefix;
    let has_prefix = checkpoint.tensors().any(|(name, _)| name.starts_with(prefix));
    // A folder with classes has the names of the class in transformers that reads it.
    let adds_prefix = trained.data.form.classes().is_some() && !has_prefix;
    let full = |name: &str| match adds_prefix && !name.starts_with("classifier.") {
        true => format!("{prefix}{}", name.strip_prefix(prefix).unwrap_or(name)),
        false => name.to_owned(),
    };
    let mut tensors = BTreeMap::new();
    for (name, stored) in checkpoint.tensors() {
        // Numbers of positions, which old checkpoints carry; heads of what it was trained on before.
        let is_old_head = |name: &str| name.starts_with("cls.") || name.starts_with("classifier.");
        if stored.format().is_err() || (adds_prefix && is_old_head(name)) {
            continue;
        }
        let shape = stored.shape.clone();
        let numbers = stored.numbers().map_err(BuiltinError::from)?;
        tensors.insert(full(name), (safetensors::Dtype::F32, shape, bytes(&numbers)));
    }
    let names = model.trained_names();
    for ((name, shape), numbers) in names.iter().zip(&trained.shapes).zip(&trained.values) {
        // Low-rank pairs have no name in the model's files.
        if name.is_empty() {
            continue;
        }
        tensors.insert(full(name), (safetensors::Dtype::F32, shape.dims.clone(), bytes(numbers)));
    }
    // Low-rank pairs of a classifier are merged here.
    for pair in model.adapter_pairs() {
        let name = full(&pair.target.tensor);
        if let Some((_, _, old)) = tensors.get_mut(&name) {
            let mut numbers: Vec<f32> =
                old.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
            pair.add_to(&mut numbers);
            *old = bytes(&numbers);
        }
    }
    Ok(tensors)
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The configuration, with the names of the classes.
fn settings(bytes: &[u8], classes: &[String]) -> Vec<u8> {
    let Ok(mut settings) = serde_json::from_slice::<Map<String, Value>>(bytes) else {
        return bytes.to_vec();
    };
    settings.insert("dtype".to_owned(), json!("float32"));
    settings.remove("torch_dtype");
    if !classes.is_empty() {
        let names: Map<String, Value> =
            classes.iter().enumerate().map(|(at, name)| (at.to_string(), json!(name))).collect();
        let numbers: Map<String, Value> =
            classes.iter().enumerate().map(|(at, name)| (name.clone(), json!(at))).collect();
        settings.insert("architectures".to_owned(), json!(["BertForSequenceClassification"]));
        settings.insert("id2label".to_owned(), Value::Object(names));
        settings.insert("label2id".to_owned(), Value::Object(numbers));
    }
    format!("{:#}\n", Value::Object(settings)).into_bytes()
}
