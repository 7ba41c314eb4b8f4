//! The labelled messages, as training and evaluation read them.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use surefoot_core::fault::FaultKind;
use surefoot_explain::learned::Sample;

/// One labelled message.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Message {
    pub(crate) message: String,
    pub(crate) label: FaultKind,
    pub(crate) framework: String,
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) round: String,
    /// What the rules said before they were tuned on it.
    pub(crate) rules_before: Option<RulesBefore>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct RulesBefore {
    pub(crate) kind: FaultKind,
    pub(crate) confidence: f32,
}

impl Message {
    pub(crate) fn sample(&self) -> Sample<'_> {
        Sample { text: &self.message, kind: self.label }
    }

    /// Where the message comes from: the repository of a thread, the site of a page, and for
    /// words from memory the message itself, since such lists have no common origin.
    pub(crate) fn group(&self) -> &str {
        let Some(rest) = self.source.strip_prefix("https://") else { return &self.message };
        let parts = if rest.starts_with("github.com/") { 3 } else { 1 };
        let end = rest.match_indices('/').nth(parts - 1).map_or(rest.len(), |(at, _)| at);
        &rest[..end]
    }
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub(crate) fn messages(name: &str) -> Result<Vec<Message>, Box<dyn Error>> {
    let text = fs::read_to_string(folder().join("tests/data").join(name))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Everything that may be trained on: the samples, then the rounds in the order they came.
pub(crate) fn all() -> Result<Vec<Message>, Box<dyn Error>> {
    let mut all = messages("errors.jsonl")?;
    all.iter_mut().for_each(|message| message.round = "samples".to_owned());
    all.extend(messages("errors-tuned-on.jsonl")?);
    Ok(all)
}

/// Lines that are no errors, and letters with a few words of the field between them: a model that
/// has only seen errors takes every text for one.
pub(crate) fn ordinary() -> Result<Vec<String>, Box<dyn Error>> {
    const WORDS: &[&str] = &[
        "device",
        "devices",
        "the",
        "cuda",
        "gpu",
        "model",
        "batch",
        "shape",
        "of",
        "loaded",
        "kernel",
        "metal",
        "is",
        "tensor",
        "buffer",
        "half",
        "lost",
        "found",
        "memory",
        "mps",
        "room",
        "information",
        "and",
        "with",
        "not",
        "to",
        "value",
        "index",
        "data",
        "file",
    ];
    let text = fs::read_to_string(folder().join("tests/data/ordinary-lines.txt"))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..400 {
        let mut words: Vec<String> = (0..random.usize(0..4))
            .map(|_| WORDS[random.usize(..WORDS.len())].to_owned())
            .collect();
        for _ in 0..random.usize(1..8) {
            words.push((0..random.usize(3..10)).map(|_| random.lowercase()).collect());
        }
        lines.push(words.join(if random.bool() { " " } else { ", " }));
    }
    Ok(lines)
}
