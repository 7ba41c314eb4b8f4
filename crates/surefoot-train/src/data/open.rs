//! From the configuration to the samples.

use std::path::Path;
use std::sync::Arc;

use super::cifar::cifar10;
use super::digits::digits;
use super::idx::mnist;
use super::{DataError, Folder, Form, Source, Table, Text, Transform, split};
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
    /// What the classes are called, if they have names.
    pub classes: Vec<String>,
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
    let mut classes = Vec::new();
    let path = || {
        config.path.as_deref().ok_or_else(|| {
            DataError::new(Path::new("data.path"), format!("{} needs a path", config.kind.as_str()))
        })
    };
    let held_out = |source: Arc<dyn Source>| {
        let (train, test) = split(source, config.test, seed);
        (Arc::new(train) as Arc<dyn Source>, Arc::new(test) as Arc<dyn Source>)
    };
    let (train, test): (Arc<dyn Source>, Arc<dyn Source>) = match config.kind {
        DataKind::Digits => held_out(Arc::new(digits()?)),
        DataKind::Mnist => (Arc::new(mnist(path()?, "train")?), Arc::new(mnist(path()?, "t10k")?)),
        DataKind::Cifar10 => {
            let batches: Vec<String> = (1..=5).map(|n| format!("data_batch_{n}.bin")).collect();
            let batches: Vec<&str> = batches.iter().map(String::as_str).collect();
            let folder = path()?;
            (Arc::new(cifar10(folder, &batches)?), Arc::new(cifar10(folder, &["test_batch.bin"])?))
        }
        DataKind::Folder => {
            let folder = path()?;
            let list = |folder: &Path| Folder::list(folder, config.size, config.channels);
            let (train, test) = (folder.join("train"), folder.join("test"));
            if train.is_dir() && test.is_dir() {
                let (train, test_images) = (list(&train)?, list(&test)?);
                if train.classes() != test_images.classes() {
                    return Err(DataError::new(&test, "its classes are not those of train"));
                }
                classes = train.classes().to_vec();
                (Arc::new(train), Arc::new(test_images))
            } else {
                let all = list(folder)?;
                classes = all.classes().to_vec();
                held_out(Arc::new(all))
            }
        }
        DataKind::Csv => {
            let table = Table::read(path()?, config.label.as_deref())?;
            classes = table.classes().to_vec();
            held_out(Arc::new(table))
        }
        DataKind::Text => {
            let (train, test) =
                Text::read(path()?, config.tokenizer.as_deref(), config.length, config.test)?;
            (Arc::new(train), Arc::new(test))
        }
    };
    if train.form() != test.form() {
        return Err(DataError::new(
            Path::new("data"),
            format!("the test samples are {:?}, those to train on {:?}", test.form(), train.form()),
        ));
    }
    if train.is_empty() || test.is_empty() {
        return Err(DataError::new(
            Path::new("data"),
            "there are too few samples to train and test",
        ));
    }
    let transform = Arc::new(Transform::learn(&*train, config.normalise, config.augment));
    Ok(DataSet { train, test, transform, classes })
}
