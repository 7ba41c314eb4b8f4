//! From the configuration to the samples.

use std::path::Path;
use std::sync::Arc;

use super::cifar::{self, cifar10};
use super::digits::digits;
use super::idx::mnist;
use super::{
    DataDescription, DataError, Folder, Form, Source, Table, TableOptions, Target, Text, Transform,
    class_weights, pretrained_text, split,
};
use crate::config::{DataConfig, DataKind};

/// What to train and test on.
#[derive(Clone)]
pub struct DataSet {
    /// Samples to train on.
    pub train: Arc<dyn Source>,
    /// Samples to test on, none of which is trained on.
    pub test: Arc<dyn Source>,
    /// What is done to each.
    pub transform: Arc<Transform>,
    /// How much each class counts in the loss of training; all the same if none.
    pub class_weights: Option<Arc<Vec<f32>>>,
    /// What they mean: stored in checkpoints.
    pub description: DataDescription,
    /// What the user should know about how the data was read.
    pub notes: Vec<String>,
}

impl DataSet {
    /// What the samples look like.
    pub fn form(&self) -> Form {
        self.train.form()
    }
}

/// Opens what `config` describes. `seed` chooses what is held out where the data has no test
/// set of its own.
pub fn open(config: &DataConfig, seed: u64) -> Result<DataSet, DataError> {
    let opened = read(config, seed, None)?;
    let transform = Transform::learn(&*opened.train, config.normalise, config.augment);
    opened.with(transform, config)
}

/// Opens what `config` describes for a model that was trained on data with the description
/// `known`: with its classes, columns and vocabulary, and normalised as it was. What doesn't fit
/// is an error that names it.
pub fn open_as(
    config: &DataConfig,
    seed: u64,
    known: &DataDescription,
) -> Result<DataSet, DataError> {
    let opened = read(config, seed, Some(known))?;
    if opened.train.form() != known.form {
        let place = config.path.as_deref().unwrap_or(Path::new("data"));
        let why = format!(
            "its samples are {}, and the model was trained on {}",
            opened.train.form(),
            known.form
        );
        return Err(DataError::new(place, why));
    }
    let (normalisation, target) = (known.normalisation.clone(), known.target.clone());
    let transform = Transform::known(known.form, normalisation, target, config.augment);
    opened.with(transform, config)
}

/// Samples, before it is known how they are normalised.
struct Opened {
    train: Arc<dyn Source>,
    test: Arc<dyn Source>,
    description: DataDescription,
    notes: Vec<String>,
}

impl Opened {
    fn with(self, transform: Transform, config: &DataConfig) -> Result<DataSet, DataError> {
        let Self { train, test, mut description, notes } = self;
        description.normalisation = transform.normalisation().clone();
        description.target = transform.target().cloned();
        let transform = Arc::new(transform);
        let mut set = DataSet { train, test, transform, class_weights: None, description, notes };
        set.class_weights = class_weights(&config.class_weights, &set)?.map(Arc::new);
        Ok(set)
    }
}

fn read(
    config: &DataConfig,
    seed: u64,
    known: Option<&DataDescription>,
) -> Result<Opened, DataError> {
    let (mut classes, mut columns, mut label, mut vocabulary, mut notes) =
        (Vec::new(), Vec::new(), None, None, Vec::new());
    let path = || {
        config.path.as_deref().ok_or_else(|| {
            DataError::new(Path::new("data.path"), format!("{} needs a path", config.kind.as_str()))
        })
    };
    let held_out = |source: Arc<dyn Source>| {
        let (train, test) = split(source, config.test, seed);
        (Arc::new(train) as Arc<dyn Source>, Arc::new(test) as Arc<dyn Source>)
    };
    let known_classes = known.map(|known| known.classes.as_slice());
    let (train, test): (Arc<dyn Source>, Arc<dyn Source>) = match config.kind {
        DataKind::Jsonl | DataKind::Text | DataKind::Csv if config.model.is_some() => {
            let model = config.model.as_deref().unwrap_or(Path::new(""));
            let text = pretrained_text::read(config, path()?, model, seed, known_classes)?;
            classes = text.classes;
            if let Some((heading, labels)) = text.columns {
                columns = vec![heading];
                label = Some(labels);
            }
            vocabulary = Some(text.vocabulary);
            notes.extend(text.notes);
            (text.train, text.test)
        }
        DataKind::Jsonl => {
            return Err(DataError::new(path()?, "jsonl needs a pretrained model: set model.path"));
        }
        DataKind::Digits => held_out(Arc::new(digits()?)),
        DataKind::Mnist => {
            let at_least = known_classes.map_or(2, <[String]>::len);
            let train = mnist(path()?, "train", at_least)?;
            let test = mnist(path()?, "t10k", train.form().outputs())?;
            (Arc::new(train), Arc::new(test))
        }
        DataKind::Cifar10 => {
            let batches: Vec<String> = (1..=5).map(|n| format!("data_batch_{n}.bin")).collect();
            let batches: Vec<&str> = batches.iter().map(String::as_str).collect();
            let folder = path()?;
            classes = cifar::NAMES.map(str::to_owned).to_vec();
            (Arc::new(cifar10(folder, &batches)?), Arc::new(cifar10(folder, &["test_batch.bin"])?))
        }
        DataKind::Folder => {
            let folder = path()?;
            let list = |folder: &Path, known: Option<&[String]>| {
                Folder::list(folder, config.size, config.channels, known)
            };
            let (train, test) = (folder.join("train"), folder.join("test"));
            if train.is_dir() && test.is_dir() {
                let train = list(&train, known_classes)?;
                let test = list(&test, Some(train.classes()))?;
                classes = train.classes().to_vec();
                notes.extend([train.ignored(), test.ignored()].into_iter().flatten());
                (Arc::new(train), Arc::new(test))
            } else {
                let all = list(folder, known_classes)?;
                classes = all.classes().to_vec();
                notes.extend(all.ignored());
                held_out(Arc::new(all))
            }
        }
        DataKind::Csv => {
            let options = TableOptions {
                label: config.label.as_deref(),
                ignore: &config.ignore,
                task: config.task,
                known,
                unlabelled: false,
            };
            let table = Table::read(path()?, options)?;
            classes = table.classes().to_vec();
            columns = table.columns().to_vec();
            label = Some(table.label().to_owned());
            notes.extend_from_slice(table.notes());
            held_out(Arc::new(table))
        }
        DataKind::Text => {
            let known = known.and_then(|known| known.vocabulary.as_ref());
            let (tokenizer, length) = (config.tokenizer.as_deref(), config.length);
            let (train, test, learned) =
                Text::read(path()?, tokenizer, length, config.test, known)?;
            vocabulary = Some(learned);
            (Arc::new(train), Arc::new(test))
        }
    };
    if train.form() != test.form() {
        let why =
            format!("the test samples are {}, those to train on {}", test.form(), train.form());
        return Err(DataError::new(Path::new("data"), why));
    }
    if train.is_empty() || test.is_empty() {
        return Err(DataError::new(
            Path::new("data"),
            "there are too few samples to train and test",
        ));
    }
    let form = train.form();
    if let (Form::Dense { target: Target::Classes(count), .. }, []) = (form, &classes[..]) {
        classes = (0..count).map(|class| class.to_string()).collect();
    }
    let (normalisation, target) = Default::default();
    let description =
        DataDescription { form, classes, columns, label, vocabulary, normalisation, target };
    Ok(Opened { train, test, description, notes })
}
