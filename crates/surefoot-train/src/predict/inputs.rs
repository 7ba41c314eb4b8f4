//! Inputs to predict from: images, lines of tables, lines of text.

use std::path::Path;

use crate::data::{
    DataError, Form, Sample, Source, Table, TableOptions, image_files, read_image_file,
};

use super::Predictor;

/// What a model takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Image files, or folders of them.
    Images,
    /// CSV files: a prediction for each line.
    Tables,
    /// Text files: a prediction for each line.
    Texts,
}

/// One input that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// What it is called: its file, or its line.
    pub name: String,
    pub(super) input: Input,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    Numbers(Vec<f32>),
    Tokens(Vec<u32>),
}

/// Inputs, each of which could be read or not.
pub type Items = Vec<Result<Item, DataError>>;

impl Predictor<'_> {
    /// What this model takes in.
    pub fn input_kind(&self) -> InputKind {
        match self.manifest().data.form {
            Form::Text { .. } | Form::Sequences { .. } => InputKind::Texts,
            _ if !self.manifest().data.columns.is_empty() => InputKind::Tables,
            Form::Dense { .. } => InputKind::Images,
        }
    }

    /// Reads the inputs of a path: an image, all images below a folder, the lines of a table or
    /// of a text. An input that can't be read is an error of its own.
    pub fn read_path(&self, path: &Path) -> Result<Items, DataError> {
        match self.input_kind() {
            InputKind::Images => {
                let files = match path.is_dir() {
                    true => image_files(path)?,
                    false => vec![path.to_owned()],
                };
                Ok(files.iter().map(|file| self.image(file)).collect())
            }
            _ => {
                let bytes =
                    std::fs::read(path).map_err(|error| DataError::new(path, error.to_string()))?;
                self.read_bytes(path, bytes)
            }
        }
    }

    /// Reads the inputs in some bytes: one image, a table or a text. `name` is what they are
    /// called.
    pub fn read_bytes(&self, name: &Path, bytes: Vec<u8>) -> Result<Items, DataError> {
        match self.input_kind() {
            InputKind::Images => {
                let (side, channels) = self.image_size()?;
                let values = crate::data::decode_image(bytes, side, channels);
                Ok(vec![item(name, values)])
            }
            InputKind::Tables => self.table(name, &bytes),
            InputKind::Texts => {
                let text = String::from_utf8(bytes)
                    .map_err(|_| DataError::new(name, "it is not UTF-8 text"))?;
                let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty());
                Ok(lines
                    .map(|(at, line)| {
                        let place = format!("line {} of {}", at + 1, name.display());
                        self.text(&place, line)
                    })
                    .collect())
            }
        }
    }

    /// One text. Only as many of its last tokens are read as the model can take.
    pub fn text(&self, name: &str, text: &str) -> Result<Item, DataError> {
        let data = &self.manifest().data;
        let vocabulary = data.vocabulary.as_ref().ok_or_else(|| {
            DataError::new(Path::new(name), "the model takes no text: it was trained on numbers")
        })?;
        let tokens = match &self.texts {
            Some(texts) => texts
                .encode(text)
                .map_err(|error| DataError::new(Path::new(name), error.to_string()))?,
            None => vocabulary.encode(text, Path::new(name))?,
        };
        if tokens.is_empty() {
            return Err(DataError::new(Path::new(name), "it is empty"));
        }
        let read = tokens.len().saturating_sub(data.form.size());
        Ok(Item { name: name.to_owned(), input: Input::Tokens(tokens[read..].to_vec()) })
    }

    fn image_size(&self) -> Result<(usize, usize), DataError> {
        match self.manifest().data.form {
            Form::Dense { channels, height, width, .. } if height == width => {
                Ok((height, channels))
            }
            form => {
                let why = format!("the model was trained on {form}, and images are made square");
                Err(DataError::new(Path::new("the checkpoint"), why))
            }
        }
    }

    fn image(&self, file: &Path) -> Result<Item, DataError> {
        let (side, channels) = self.image_size()?;
        item(file, read_image_file(file, side, channels))
    }

    fn table(&self, name: &Path, bytes: &[u8]) -> Result<Items, DataError> {
        let options = TableOptions {
            ignore: &self.config().data.ignore,
            known: Some(&self.manifest().data),
            unlabelled: true,
            ..TableOptions::default()
        };
        let table = Table::parse(name, bytes, options)?;
        let line = |at: usize| {
            let name = table.name(at);
            let values = match table.read(at) {
                Ok(Sample::Dense { values, .. }) => Ok(values),
                Ok(Sample::Tokens(_) | Sample::Sequences { .. }) => {
                    Err("it is not a line of numbers".to_owned())
                }
                Err(why) => Err(why),
            };
            item(Path::new(&name), values)
        };
        Ok((0..table.len()).map(line).collect())
    }
}

fn item(name: &Path, values: Result<Vec<f32>, String>) -> Result<Item, DataError> {
    match values {
        Ok(values) => Ok(Item { name: name.display().to_string(), input: Input::Numbers(values) }),
        Err(why) => Err(DataError::new(name, why)),
    }
}
