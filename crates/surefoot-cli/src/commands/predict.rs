//! `surefoot predict`: predictions of a model that `surefoot train` made, for new inputs.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use surefoot::Footing;
use surefoot_train::data::DataError;
use surefoot_train::predict::{InputKind, Item, PredictError, Prediction, Predictor};

use crate::args::{Global, flush};
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::terminal::Terminal;

/// Predict classes, numbers or the next token with a checkpoint of `surefoot train`
#[derive(Debug, Args)]
#[command(after_help = "\
The checkpoint knows what it takes: images (files, or folders with images at any depth), CSV files
(one prediction a line; columns are found by their headings), or text files (one a line). Prints
INPUT, LABEL and PROBABILITY separated by tabs; for numbers INPUT and NUMBER. An input that can't be
read is named on stderr, the others are predicted, and the exit code is 2.

Examples:
  surefoot predict runs/images/step-00000400.safetensors photo.jpg more-photos/
  surefoot predict runs/table/step-00000120.safetensors new.csv --json
  surefoot predict runs/digits/step-00000460.safetensors - < digit.png
  surefoot predict runs/text/step-00001000.safetensors --text 'To be or not to b' --top 3")]
pub(crate) struct Predict {
    /// The checkpoint: a .safetensors file of `surefoot train`
    checkpoint: PathBuf,
    /// Images, folders of images, CSV files or text files, or - for stdin
    #[arg(value_name = "INPUT", required_unless_present = "text")]
    inputs: Vec<PathBuf>,
    /// A text to continue, for a text model; can be given several times
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// How many classes or tokens to print for each input
    #[arg(long, value_name = "N", default_value_t = 1)]
    top: usize,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: &'a Path,
    step: u64,
    device: String,
    classes: &'a [String],
    predictions: Vec<Line>,
}

/// What is told of one input.
#[derive(Serialize)]
struct Line {
    input: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probability: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top: Vec<Ranked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Ranked {
    label: String,
    probability: f64,
}

impl Predict {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        let journal = global.open_journal()?;
        let footing = self.footing.footing(journal.clone())?.build().map_err(Failure::from)?;
        let result = self.predict(&footing, global, terminal);
        flush(&journal, terminal);
        result
    }

    fn predict(
        &self,
        footing: &Footing,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        let predictor = Predictor::open(&self.checkpoint, footing).map_err(failed)?;
        let mut lines = Vec::new();
        let mut unreadable = 0;
        let mut waiting: Vec<Item> = Vec::new();
        let size = predictor.batch_size().max(1);
        for item in self.items(&predictor)? {
            match item {
                Ok(item) => waiting.push(item),
                Err(error) => {
                    unreadable += 1;
                    terminal.note(&format!("can't be read: {error}"));
                    if global.json {
                        lines.push(Line::unreadable(&error));
                    }
                }
            }
            if waiting.len() == size {
                self.batch(
                    &predictor,
                    &std::mem::take(&mut waiting),
                    global,
                    terminal,
                    &mut lines,
                )?;
            }
        }
        self.batch(&predictor, &waiting, global, terminal, &mut lines)?;
        if global.json {
            let device = footing.device().map_err(Failure::from)?;
            terminal.json(&Document {
                checkpoint: &self.checkpoint,
                step: predictor.manifest().step,
                device: device.name().to_string(),
                classes: &predictor.manifest().data.classes,
                predictions: lines,
            })?;
        }
        Ok(if unreadable == 0 { Exit::Done } else { Exit::Usage })
    }

    /// All inputs, in the order in which they were named.
    fn items(&self, predictor: &Predictor<'_>) -> Result<Vec<Result<Item, DataError>>, Failure> {
        let mut items = Vec::new();
        for (at, text) in self.text.iter().enumerate() {
            if predictor.input_kind() != InputKind::Texts {
                return Err(Failure::usage("--text is for models of text")
                    .because(format!("{} takes no text", self.checkpoint.display())));
            }
            items.push(predictor.text(&format!("text {}", at + 1), text));
        }
        for path in &self.inputs {
            let read = match path.as_os_str() == "-" {
                true => {
                    let mut bytes = Vec::new();
                    std::io::stdin()
                        .lock()
                        .read_to_end(&mut bytes)
                        .map_err(|error| Failure::usage("stdin can't be read").caused_by(&error))?;
                    predictor.read_bytes(Path::new("stdin"), bytes)
                }
                false => predictor.read_path(path),
            };
            match read {
                Ok(read) => items.extend(read),
                Err(error) => items.push(Err(error)),
            }
        }
        Ok(items)
    }

    fn batch(
        &self,
        predictor: &Predictor<'_>,
        items: &[Item],
        global: &Global,
        terminal: &Terminal,
        lines: &mut Vec<Line>,
    ) -> Result<(), Failure> {
        if items.is_empty() {
            return Ok(());
        }
        let predictions = predictor.predict(items).map_err(failed)?;
        for (item, prediction) in items.iter().zip(&predictions) {
            let line = Line::new(predictor, item, prediction, self.top);
            match global.json {
                true => lines.push(line),
                false => terminal.result(&line.text())?,
            }
        }
        Ok(())
    }
}

impl Line {
    fn new(predictor: &Predictor<'_>, item: &Item, prediction: &Prediction, top: usize) -> Self {
        let ranked = prediction.top(top.max(1)).into_iter();
        let top: Vec<Ranked> = ranked
            .map(|(output, probability)| Ranked { label: predictor.name(output), probability })
            .collect();
        Self {
            input: item.name.clone(),
            label: top.first().map(|first| first.label.clone()),
            probability: top.first().map(|first| first.probability),
            value: match prediction {
                Prediction::Number(number) => Some(*number),
                _ => None,
            },
            top,
            error: None,
        }
    }

    fn unreadable(error: &DataError) -> Self {
        Self {
            input: error.place.clone(),
            label: None,
            probability: None,
            value: None,
            top: Vec::new(),
            error: Some(error.why.clone()),
        }
    }

    fn text(&self) -> String {
        if let Some(number) = self.value {
            return format!("{}\t{number}\n", self.input);
        }
        let line = |ranked: &Ranked| {
            // A token may be a tab or a line's end.
            let label = ranked.label.escape_debug();
            format!("{}\t{label}\t{:.4}\n", self.input, ranked.probability)
        };
        self.top.iter().map(line).collect()
    }
}

fn failed(error: PredictError) -> Failure {
    match error {
        PredictError::Fault(fault) => Failure::from(fault),
        PredictError::Data(error) => {
            let failure = Failure::usage("the input can't be used").because(error.to_string());
            match error.hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        }
        other => Failure::usage("the checkpoint can't be used").caused_by(&other),
    }
}
