//! Answers as OpenAI writes them: whole ones and chunks, of completions and of chats.

use serde_json::{Map, Value, json};

use super::speaker::{Piece, Spelt};

/// Which endpoint is answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Chat,
}

/// What all parts of an answer share.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) form: Form,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    /// Whether probabilities were asked for.
    pub(super) logprobs: bool,
}

/// Tokens that were read and written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) completion: usize,
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        })
    }
}

impl Answer {
    /// A choice of a whole answer.
    pub(super) fn choice(&self, index: usize, piece: &Piece, before: usize) -> Value {
        let logprobs = self.logprobs(&piece.tokens, before);
        match self.form {
            Form::Text => json!({
                "index": index,
                "text": piece.text,
                "logprobs": logprobs,
                "finish_reason": piece.end,
            }),
            Form::Chat => json!({
                "index": index,
                "message": {"role": "assistant", "content": piece.text, "refusal": null},
                "logprobs": logprobs,
                "finish_reason": piece.end,
            }),
        }
    }

    /// A whole answer.
    pub(super) fn whole(&self, choices: Vec<Value>, usage: Usage) -> Value {
        let object = match self.form {
            Form::Text => "text_completion",
            Form::Chat => "chat.completion",
        };
        let mut answer = self.envelope(object, choices);
        answer.insert("usage".to_owned(), usage.json());
        Value::Object(answer)
    }

    /// The chunk that opens a choice: who speaks.
    pub(super) fn opening(&self, index: usize, usage: bool) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        (self.form == Form::Chat).then(|| self.delta(index, delta, Value::Null, None, usage))
    }

    /// The chunk of one piece. `before` is where its text begins in the choice, and with `usage`
    /// it says that the figures are still to come.
    pub(super) fn chunk(&self, index: usize, piece: &Piece, before: usize, usage: bool) -> Value {
        let logprobs = self.logprobs(&piece.tokens, before);
        match self.form {
            Form::Text => {
                let choice = json!({
                    "index": index,
                    "text": piece.text,
                    "logprobs": logprobs,
                    "finish_reason": piece.end,
                });
                self.of_chunk(vec![choice], usage.then_some(Value::Null))
            }
            Form::Chat => {
                let delta = json!({"content": piece.text});
                self.delta(index, delta, logprobs, None, usage)
            }
        }
    }

    /// The chunk that closes a choice of a chat.
    pub(super) fn closing(&self, index: usize, end: &'static str, usage: bool) -> Option<Value> {
        (self.form == Form::Chat)
            .then(|| self.delta(index, json!({}), Value::Null, Some(end), usage))
    }

    /// The last chunk, with the figures.
    pub(super) fn figures(&self, usage: Usage) -> Value {
        self.of_chunk(Vec::new(), Some(usage.json()))
    }

    fn delta(
        &self,
        index: usize,
        delta: Value,
        logprobs: Value,
        end: Option<&'static str>,
        usage: bool,
    ) -> Value {
        let choice =
            json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end});
        self.of_chunk(vec![choice], usage.then_some(Value::Null))
    }

    fn of_chunk(&self, choices: Vec<Value>, usage: Option<Value>) -> Value {
        let object = match self.form {
            Form::Text => "text_completion",
            Form::Chat => "chat.completion.chunk",
        };
        let mut chunk = self.envelope(object, choices);
        if let Some(usage) = usage {
            chunk.insert("usage".to_owned(), usage);
        }
        Value::Object(chunk)
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), json!(self.id));
        map.insert("object".to_owned(), json!(object));
        map.insert("created".to_owned(), json!(self.created));
        map.insert("model".to_owned(), json!(self.model));
        map.insert("choices".to_owned(), Value::Array(choices));
        map
    }

    fn logprobs(&self, tokens: &[Spelt], before: usize) -> Value {
        match self.form {
            _ if !self.logprobs => Value::Null,
            Form::Text => {
                let mut at = before;
                let offsets: Vec<usize> = tokens
                    .iter()
                    .map(|spelt| {
                        let here = at;
                        at += spelt.token.chars().count();
                        here
                    })
                    .collect();
                // Tokens that are spelt alike share a key: the likeliest, which comes last, stays.
                let tops: Vec<Map<String, Value>> = tokens
                    .iter()
                    .map(|spelt| spelt.top.iter().rev())
                    .map(|top| top.map(|(token, p)| (token.clone(), json!(p))).collect())
                    .collect();
                json!({
                    "tokens": tokens.iter().map(|spelt| &spelt.token).collect::<Vec<_>>(),
                    "token_logprobs": tokens.iter().map(|spelt| spelt.logprob).collect::<Vec<_>>(),
                    "top_logprobs": tops,
                    "text_offset": offsets,
                })
            }
            Form::Chat => {
                let one = |token: &str, logprob: f32| json!({"token": token, "logprob": logprob, "bytes": bytes(token)});
                let content: Vec<Value> = tokens
                    .iter()
                    .map(|spelt| {
                        let mut value = one(&spelt.token, spelt.logprob);
                        value["top_logprobs"] =
                            spelt.top.iter().map(|(token, p)| one(token, *p)).collect();
                        value
                    })
                    .collect();
                json!({"content": content, "refusal": null})
            }
        }
    }
}

/// The bytes of a token, unless it only begins a character.
fn bytes(token: &str) -> Option<&[u8]> {
    (!token.contains('\u{fffd}')).then_some(token.as_bytes())
}
