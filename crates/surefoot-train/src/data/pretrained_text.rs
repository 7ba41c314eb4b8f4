//! Text for a pretrained model: read with its own tokenizer and chat template.

use std::path::Path;
use std::sync::Arc;

use surefoot_models::Opened;
use surefoot_models::chat::Template;
use surefoot_models::generate::text::Texts;

use super::jsonl::{self, LineReader};
use super::{DataError, Example, Form, Sequences, Source, Vocabulary, gzip, text_table};
use crate::config::{DataConfig, DataKind};
use crate::random::SeededRandom;

/// Rows to train and to test on, and what the user should know.
pub(super) struct PretrainedText {
    pub(super) train: Arc<dyn Source>,
    pub(super) test: Arc<dyn Source>,
    pub(super) vocabulary: Vocabulary,
    /// The classes of texts, and the headings of the columns of texts and labels.
    pub(super) classes: Vec<String>,
    pub(super) columns: Option<(String, String)>,
    pub(super) notes: Vec<String>,
}

/// Reads the data of `config` for the model folder `model`.
pub(super) fn read(
    config: &DataConfig,
    path: &Path,
    model: &Path,
    seed: u64,
    known: Option<&[String]>,
) -> Result<PretrainedText, DataError> {
    let wrong = |error: &dyn std::fmt::Display| DataError::new(model, error.to_string());
    let opened = Opened::new(model).map_err(|error| wrong(&error))?;
    let vocabulary = opened.blueprint.vocab;
    let mut texts = Texts::open(model, vocabulary).map_err(|error| wrong(&error))?;
    let length = match opened.blueprint.embeddings.positions {
        Some(_) => config.length.min(opened.blueprint.max_positions),
        None => config.length,
    };
    let mut notes = Vec::new();
    if length < config.length {
        notes.push(format!(
            "the model has learned {length} positions: rows are no longer than that"
        ));
    }
    let (mut classes, mut columns) = (Vec::new(), None);
    let (train, test) = match config.kind {
        DataKind::Csv => {
            let table = text_table::read(path, config, &mut texts, length, known)?;
            if table.cut > 0 {
                notes.push(format!("{} texts are cut to {length} tokens", table.cut));
            }
            (classes, columns) = (table.classes, Some((table.text, table.label)));
            split(table.examples, config.test, seed)
        }
        DataKind::Text => pieces(path, &texts, length, config.test)?,
        _ => {
            let template = match &config.template {
                Some(name) => Some(Template::named(name, model).map_err(|error| wrong(&error))?),
                None => Template::of_folder(model).map_err(|error| wrong(&error))?,
            };
            let ends = opened.end_tokens().map_err(|error| wrong(&error))?;
            let reader = LineReader {
                texts: &texts,
                template: template.as_ref(),
                end: ends.first().copied().filter(|end| (*end as usize) < vocabulary),
            };
            let examples = jsonl::read(path, &reader)?;
            split(cut(examples, length, path, &mut notes)?, config.test, seed)
        }
    };
    let count = columns.as_ref().map(|_| classes.len());
    let form = Form::Sequences { vocabulary, length, classes: count };
    let rows = |examples: Vec<Example>| {
        Arc::new(Sequences::new(form, examples, config.pack)) as Arc<dyn Source>
    };
    let (train, test) = (rows(train), rows(test));
    let vocabulary = Vocabulary::of_model(model)?;
    Ok(PretrainedText { train, test, vocabulary, classes, columns, notes })
}

/// Cuts sequences to `length`. Those that have nothing left to predict are left out.
fn cut(
    examples: Vec<Example>,
    length: usize,
    path: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<Example>, DataError> {
    let long = examples.iter().filter(|example| example.tokens.len() > length).count();
    let count = examples.len();
    let mut kept = examples;
    kept.retain_mut(|example| example.cut(length));
    if long > 0 {
        let longest = "set data.length higher to keep all of them";
        notes.push(format!("{long} of {count} samples are cut to {length} tokens; {longest}"));
    }
    if kept.len() < count {
        let out = count - kept.len();
        notes
            .push(format!("{out} samples are left out: their answers begin behind token {length}"));
    }
    match kept.len() < 2 {
        true => Err(DataError::new(
            path,
            format!("it has {} samples, too few to train and test", kept.len()),
        )
        .hint("two are the least; set data.length higher if they were cut")),
        false => Ok(kept),
    }
}

/// Holds out a share of the sequences, chosen by the seed.
fn split(examples: Vec<Example>, share: f64, seed: u64) -> (Vec<Example>, Vec<Example>) {
    let count = examples.len();
    let held = ((count as f64 * share).round() as usize).clamp(1, count.saturating_sub(1).max(1));
    let order = SeededRandom::of(&[seed, 0x5911]).permutation(count);
    let mut out = vec![false; count];
    order[..held].iter().for_each(|at| out[*at] = true);
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (example, held) in examples.into_iter().zip(out) {
        if held { test.push(example) } else { train.push(example) }
    }
    (train, test)
}

/// A text in pieces of `length` tokens; those at its end are held out.
fn pieces(
    path: &Path,
    texts: &Texts,
    length: usize,
    share: f64,
) -> Result<(Vec<Example>, Vec<Example>), DataError> {
    let text = String::from_utf8(gzip::read(path)?)
        .map_err(|error| DataError::new(path, format!("it is not UTF-8 text: {error}")))?;
    let ids =
        texts.encode_as_written(&text).map_err(|error| DataError::new(path, error.to_string()))?;
    let mut examples: Vec<Example> = ids
        .chunks(length)
        .enumerate()
        .filter(|(_, tokens)| tokens.len() > 1)
        .map(|(at, tokens)| Example {
            name: format!("tokens {} and on of {}", at * length, path.display()),
            tokens: tokens.to_vec(),
            predicted: vec![true; tokens.len()],
            class: None,
        })
        .collect();
    if examples.len() < 2 {
        let why = format!("its {} tokens are too few for pieces of {length}", ids.len());
        return Err(DataError::new(path, why).hint("make `length` smaller or the text longer"));
    }
    let held = ((examples.len() as f64 * share).round() as usize).clamp(1, examples.len() - 1);
    let test = examples.split_off(examples.len() - held);
    Ok((examples, test))
}
