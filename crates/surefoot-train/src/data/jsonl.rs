//! Chats, prompts with completions, and texts: one JSON object in each line.
//!
//! - `{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}`: the model's own chat template
//!   writes the text; what the assistant says is predicted.
//! - `{"prompt": "…", "completion": "…"}`: the completion and the end of the text are predicted. Both may be lists of messages.
//! - `{"text": "…"}`: everything is predicted.
//!
//! A line that can't be used is an error with the file and the line.

use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};
use surefoot_models::chat::Template;
use surefoot_models::generate::text::Texts;

use super::{DataError, Example, gzip};

/// What makes tokens of a line.
pub(super) struct LineReader<'a> {
    pub(super) texts: &'a Texts,
    pub(super) template: Option<&'a Template>,
    /// The token that ends a text, if the model has one.
    pub(super) end: Option<u32>,
}

/// Reads all lines of a file.
pub(super) fn read(path: &Path, reader: &LineReader<'_>) -> Result<Vec<Example>, DataError> {
    let text = String::from_utf8(gzip::read(path)?)
        .map_err(|error| DataError::new(path, format!("it is not UTF-8 text: {error}")))?;
    let mut examples = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        let name = format!("{}:{line}", path.display());
        let example = reader.example(text, &name);
        examples.push(example.map_err(|(why, hint)| {
            let error = DataError::new(Path::new(&name), why);
            match hint {
                Some(hint) => error.hint(hint),
                None => error,
            }
        })?);
    }
    match examples.is_empty() {
        true => Err(DataError::new(path, "it has no lines")),
        false => Ok(examples),
    }
}

/// Why a line can't be used, and what to do about it.
type Refusal = (String, Option<String>);

fn refusal(why: impl Into<String>) -> Refusal {
    (why.into(), None)
}

impl LineReader<'_> {
    fn example(&self, line: &str, name: &str) -> Result<Example, Refusal> {
        let object: Map<String, Value> = serde_json::from_str(line)
            .map_err(|error| refusal(format!("it is not a JSON object: {error}")))?;
        let (text, answers, whole) = match (
            object.get("messages"),
            object.get("prompt"),
            object.get("completion"),
            object.get("text"),
        ) {
            (Some(Value::Array(messages)), None, None, None) => {
                let (text, answers) = self.chat(messages, 0)?;
                (text, answers, false)
            }
            (None, Some(Value::String(prompt)), Some(Value::String(completion)), None) => {
                if completion.is_empty() {
                    return Err(refusal("its completion is empty"));
                }
                let text = format!("{prompt}{completion}");
                let answer = prompt.len()..text.len();
                (text, vec![answer], true)
            }
            (None, Some(Value::Array(prompt)), Some(Value::Array(completion)), None) => {
                let messages: Vec<Value> = prompt.iter().chain(completion).cloned().collect();
                let (text, answers) = self.chat(&messages, prompt.len())?;
                (text, answers, false)
            }
            (None, None, None, Some(Value::String(text))) => {
                let answer = 0..text.len();
                (text.clone(), vec![answer], true)
            }
            _ => {
                let keys: Vec<&str> = object.keys().map(String::as_str).collect();
                let why = format!("it has {}", keys.join(", "));
                let hint = "each line needs `messages`, or `prompt` and `completion`, or `text`";
                return Err((why, Some(hint.to_owned())));
            }
        };
        self.tokens(name, &text, &answers, whole)
    }

    /// The text of a chat, and where in it the assistant speaks from message `from` on.
    fn chat(
        &self,
        messages: &[Value],
        from: usize,
    ) -> Result<(String, Vec<Range<usize>>), Refusal> {
        let template = self.template.ok_or_else(|| {
            let hint = "set data.template to chatml, plain or a template file, or use prompt and completion";
            ("the model has no chat template".to_owned(), Some(hint.to_owned()))
        })?;
        for (number, message) in (1..).zip(messages) {
            for key in ["role", "content"] {
                if !message.get(key).is_some_and(Value::is_string) {
                    return Err(refusal(format!("message {number} has no text for '{key}'")));
                }
            }
        }
        let wrong = |error: surefoot_models::chat::ChatError| refusal(error.to_string());
        let text = template.text(messages).map_err(wrong)?;
        let mut answers = Vec::new();
        for (at, message) in messages.iter().enumerate().skip(from) {
            if message.get("role").and_then(Value::as_str) != Some("assistant") {
                continue;
            }
            let before = template.prompt(&messages[..at]).map_err(wrong)?;
            let until = template.text(&messages[..=at]).map_err(wrong)?;
            if !(text.starts_with(&until) && until.starts_with(&before)) {
                let why = format!(
                    "the chat template writes message {} in another way when others follow it, so that \
                     the answer can't be found in the text",
                    at + 1
                );
                return Err((why, Some("use prompt and completion".to_owned())));
            }
            answers.push(before.len()..until.len());
        }
        match answers.is_empty() {
            true => Err(refusal("no message is the assistant's, so there is nothing to learn")),
            false => Ok((text, answers)),
        }
    }

    /// Tokens of a text; those that have a part in an answer are predicted. A `whole` text gets the special tokens that
    /// the tokenizer adds, and the token that ends it; a chat has its own in the text.
    fn tokens(
        &self,
        name: &str,
        text: &str,
        answers: &[Range<usize>],
        whole: bool,
    ) -> Result<Example, Refusal> {
        let (mut tokens, places) = self
            .texts
            .encode_with_places(text, whole)
            .map_err(|error| refusal(error.to_string()))?;
        let answered = |place: &Range<usize>| {
            answers.iter().any(|answer| place.end > answer.start && place.start < answer.end)
        };
        let mut predicted: Vec<bool> = places.iter().map(answered).collect();
        if let (true, Some(end)) = (whole, self.end) {
            match tokens.last() == Some(&end) {
                true => predicted.iter_mut().next_back().into_iter().for_each(|last| *last = true),
                false => {
                    tokens.push(end);
                    predicted.push(true);
                }
            }
        }
        if !predicted.iter().skip(1).any(|wanted| *wanted) {
            return Err(refusal("no token of it is predicted"));
        }
        Ok(Example { name: name.to_owned(), tokens, predicted, class: None })
    }
}
