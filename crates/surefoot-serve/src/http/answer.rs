//! Answers as OpenAI writes them: whole ones and chunks, of completions and of chats. They are
//! serialised without building a tree first: an answer with log-probabilities has a hundred thousand values.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use surefoot_models::generate::speculate::SpeculationCounts;

use super::answer_end::AnswerEnd;
use super::call_reader::ToolCall;
use super::text_stream::{Piece, TokenText};

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
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    /// Only where tokens were proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokensDetails>,
}

/// How many tokens of a prompt were known from earlier ones.
#[derive(Clone, Copy, Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

/// What became of tokens that speculative decoding proposed.
#[derive(Clone, Copy, Debug, Serialize)]
struct CompletionTokensDetails {
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

impl Usage {
    /// Of the tokens of prompts, `cached` were known and not run again.
    pub(super) fn new(prompt: usize, cached: usize, completion: usize) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: cached },
            completion_tokens_details: None,
        }
    }

    /// With what became of tokens that were proposed.
    pub(super) fn speculated(self, counts: SpeculationCounts) -> Self {
        let details = CompletionTokensDetails {
            accepted_prediction_tokens: counts.accepted,
            rejected_prediction_tokens: counts.rejected,
        };
        Self { completion_tokens_details: counts.share().map(|_| details), ..self }
    }
}

/// What is sent: a whole answer or a chunk of one.
#[derive(Serialize)]
pub(super) struct Envelope<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    /// A chunk says nothing of them, or that they are still to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// One choice, or some more of it.
#[derive(Serialize)]
pub(super) struct Choice<'a> {
    index: usize,
    #[serde(flatten)]
    content: Content<'a>,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<AnswerEnd>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Text(&'a str),
    Message(Message<'a>),
    Delta(Delta<'a>),
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    /// None if there are only calls.
    content: Option<&'a str>,
    refusal: (),
    #[serde(skip_serializing_if = "<[ToolCall]>::is_empty")]
    tool_calls: &'a [ToolCall],
}

#[derive(Serialize)]
#[serde(untagged)]
enum Delta<'a> {
    Opening(Message<'a>),
    More { content: &'a str },
    Calls { tool_calls: [CallDelta<'a>; 1] },
    Nothing {},
}

const fn of_assistant(content: &str) -> Message<'_> {
    Message { role: "assistant", content: Some(content), refusal: (), tool_calls: &[] }
}

/// The beginning of a call, or some more of its arguments.
#[derive(Serialize)]
pub(super) struct CallDelta<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta<'a>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

impl<'a> CallDelta<'a> {
    pub(super) fn begins(number: usize, id: &'a str, name: &'a str) -> Self {
        let function = FunctionDelta { name: Some(name), arguments: "" };
        Self { index: number, id: Some(id), kind: Some("function"), function }
    }

    pub(super) fn goes_on(number: usize, arguments: &'a str) -> Self {
        Self {
            index: number,
            id: None,
            kind: None,
            function: FunctionDelta { name: None, arguments },
        }
    }
}

impl Answer {
    /// A choice of a whole answer. `before` is how many characters its text has before the first
    /// token.
    pub(super) fn choice<'a>(&self, index: usize, piece: &'a Piece, before: usize) -> Choice<'a> {
        let content = match self.form {
            Form::Text => Content::Text(&piece.text),
            Form::Chat => Content::Message(Message {
                content: Some(piece.text.as_str())
                    .filter(|text| !text.is_empty() || piece.calls.is_empty()),
                tool_calls: &piece.calls,
                ..of_assistant("")
            }),
        };
        let logprobs = self.logprobs_of(&piece.tokens, before);
        Choice { index, content, logprobs, finish_reason: piece.end }
    }

    /// A whole answer.
    pub(super) fn whole<'a>(&'a self, choices: Vec<Choice<'a>>, usage: Usage) -> Envelope<'a> {
        let object = match self.form {
            Form::Text => "text_completion",
            Form::Chat => "chat.completion",
        };
        self.envelope(object, choices, Some(Some(usage)))
    }

    /// The chunk that opens a choice: who speaks.
    pub(super) fn opening(&self, index: usize, usage: bool) -> Option<Envelope<'_>> {
        let content = Content::Delta(Delta::Opening(of_assistant("")));
        let choice = Choice { index, content, logprobs: None, finish_reason: None };
        (self.form == Form::Chat).then(|| self.chunk_of(vec![choice], usage.then_some(None)))
    }

    /// The chunk of one piece. `before` is where its text begins in the choice, and with `usage`
    /// it says that the figures are still to come.
    pub(super) fn chunk<'a>(
        &'a self,
        index: usize,
        piece: &'a Piece,
        before: usize,
        usage: bool,
    ) -> Envelope<'a> {
        let logprobs = self.logprobs_of(&piece.tokens, before);
        // A chat's end comes in a chunk of its own.
        let (content, finish_reason) = match self.form {
            Form::Text => (Content::Text(&piece.text), piece.end),
            Form::Chat => (Content::Delta(Delta::More { content: &piece.text }), None),
        };
        let choice = Choice { index, content, logprobs, finish_reason };
        self.chunk_of(vec![choice], usage.then_some(None))
    }

    /// The chunk of a part of a call.
    pub(super) fn call_chunk<'a>(
        &'a self,
        index: usize,
        delta: CallDelta<'a>,
        usage: bool,
    ) -> Envelope<'a> {
        let content = Content::Delta(Delta::Calls { tool_calls: [delta] });
        let choice = Choice { index, content, logprobs: None, finish_reason: None };
        self.chunk_of(vec![choice], usage.then_some(None))
    }

    /// The identifier of a call of a choice.
    pub(super) fn call_id(&self, index: usize, number: usize) -> String {
        let own = self.id.rsplit('-').next().unwrap_or_default();
        format!("call_{own}_{index}_{number}")
    }

    /// The chunk that closes a choice of a chat.
    pub(super) fn closing(
        &self,
        index: usize,
        end: AnswerEnd,
        usage: bool,
    ) -> Option<Envelope<'_>> {
        let content = Content::Delta(Delta::Nothing {});
        let choice = Choice { index, content, logprobs: None, finish_reason: Some(end) };
        (self.form == Form::Chat).then(|| self.chunk_of(vec![choice], usage.then_some(None)))
    }

    /// The last chunk, with the figures.
    pub(super) fn figures(&self, usage: Usage) -> Envelope<'_> {
        self.chunk_of(Vec::new(), Some(Some(usage)))
    }

    fn chunk_of<'a>(
        &'a self,
        choices: Vec<Choice<'a>>,
        usage: Option<Option<Usage>>,
    ) -> Envelope<'a> {
        let object = match self.form {
            Form::Text => "text_completion",
            Form::Chat => "chat.completion.chunk",
        };
        self.envelope(object, choices, usage)
    }

    fn envelope<'a>(
        &'a self,
        object: &'static str,
        choices: Vec<Choice<'a>>,
        usage: Option<Option<Usage>>,
    ) -> Envelope<'a> {
        Envelope { id: &self.id, object, created: self.created, model: &self.model, choices, usage }
    }

    fn logprobs_of<'a>(&self, tokens: &'a [TokenText], before: usize) -> Option<Logprobs<'a>> {
        self.logprobs.then(|| match self.form {
            Form::Text => {
                let mut at = before;
                let offsets = tokens.iter().map(|spelt| {
                    let here = at;
                    at += spelt.token.chars().count();
                    here
                });
                Logprobs::Text {
                    text_offset: offsets.collect(),
                    tokens: Each(tokens, |spelt| spelt.token.as_str()),
                    token_logprobs: Each(tokens, |spelt| spelt.logprob),
                    top_logprobs: Each(tokens, |spelt| spelt.logprob.map(|_| ByToken(&spelt.top))),
                }
            }
            Form::Chat => Logprobs::Chat { content: Each(tokens, Rated::new), refusal: () },
        })
    }
}

/// How likely tokens were, as completions and as chats have it.
#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs<'a> {
    Text {
        tokens: Each<'a, TokenText, &'a str>,
        token_logprobs: Each<'a, TokenText, Option<f32>>,
        top_logprobs: Each<'a, TokenText, Option<ByToken<'a>>>,
        text_offset: Vec<usize>,
    },
    Chat {
        content: Each<'a, TokenText, Rated<'a>>,
        refusal: (),
    },
}

/// A list whose parts are made as they are written.
struct Each<'a, T, S>(&'a [T], fn(&'a T) -> S);

impl<T, S: Serialize> Serialize for Each<'_, T, S> {
    fn serialize<W: Serializer>(&self, to: W) -> Result<W::Ok, W::Error> {
        let mut list = to.serialize_seq(Some(self.0.len()))?;
        for part in self.0 {
            list.serialize_element(&(self.1)(part))?;
        }
        list.end()
    }
}

/// Likely tokens by how they are spelt. Of those that are spelt alike the likeliest, which comes
/// first, stays.
struct ByToken<'a>(&'a [(String, f32)]);

impl Serialize for ByToken<'_> {
    fn serialize<W: Serializer>(&self, to: W) -> Result<W::Ok, W::Error> {
        let mut map = to.serialize_map(None)?;
        for (at, (token, logprob)) in self.0.iter().enumerate() {
            if self.0[..at].iter().all(|(earlier, _)| earlier != token) {
                map.serialize_entry(token, logprob)?;
            }
        }
        map.end()
    }
}

/// A token of a chat.
#[derive(Serialize)]
struct Rated<'a> {
    #[serde(flatten)]
    token: OfChat<'a>,
    top_logprobs: Each<'a, (String, f32), OfChat<'a>>,
}

impl<'a> Rated<'a> {
    fn new(spelt: &'a TokenText) -> Self {
        Self {
            token: OfChat::new(&spelt.token, spelt.logprob.unwrap_or(0.0)),
            top_logprobs: Each(&spelt.top, |(token, logprob)| OfChat::new(token, *logprob)),
        }
    }
}

#[derive(Serialize)]
struct OfChat<'a> {
    token: &'a str,
    logprob: f32,
    /// None if the token only begins a character.
    bytes: Option<&'a [u8]>,
}

impl<'a> OfChat<'a> {
    fn new(token: &'a str, logprob: f32) -> Self {
        let bytes = (!token.contains('\u{fffd}')).then_some(token.as_bytes());
        Self { token, logprob, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn answer(form: Form) -> Answer {
        Answer { form, id: "id".to_owned(), created: 7, model: "m".to_owned(), logprobs: true }
    }

    fn piece() -> Piece {
        let top = vec![("é".to_owned(), -0.5), ("b".to_owned(), -1.5), ("é".to_owned(), -2.5)];
        let spelt = TokenText { token: "é".to_owned(), logprob: Some(-0.5), top };
        let half = TokenText { token: "\u{fffd}".to_owned(), logprob: Some(-1.0), top: Vec::new() };
        Piece {
            text: "é".to_owned(),
            tokens: vec![spelt, half],
            end: Some(AnswerEnd::Stop),
            ..Piece::default()
        }
    }

    fn written(envelope: &Envelope<'_>) -> Value {
        serde_json::to_value(envelope).unwrap()
    }

    #[test]
    fn a_whole_completion_is_as_openai_writes_it() {
        let (answer, piece) = (answer(Form::Text), piece());
        let whole = answer.whole(vec![answer.choice(0, &piece, 3)], Usage::new(2, 1, 1));
        let expected = json!({
            "id": "id", "object": "text_completion", "created": 7, "model": "m",
            "choices": [{
                "index": 0, "text": "é", "finish_reason": "stop",
                "logprobs": {
                    "tokens": ["é", "\u{fffd}"],
                    "token_logprobs": [-0.5, -1.0],
                    "top_logprobs": [{"é": -0.5, "b": -1.5}, {}],
                    "text_offset": [3, 4],
                },
            }],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}},
        });
        assert_eq!(written(&whole), expected);
    }

    #[test]
    fn a_chat_and_its_chunks_are_as_openai_writes_them() {
        let (answer, piece) = (answer(Form::Chat), piece());
        let whole = written(&answer.whole(vec![answer.choice(0, &piece, 0)], Usage::new(2, 0, 1)));
        assert_eq!(whole["object"], "chat.completion");
        let message = json!({"role": "assistant", "content": "é", "refusal": null});
        assert_eq!(whole["choices"][0]["message"], message);
        let first = &whole["choices"][0]["logprobs"]["content"][0];
        assert_eq!(first["token"], "é");
        assert_eq!(first["bytes"], json!([195, 169]));
        assert_eq!(first["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(whole["choices"][0]["logprobs"]["content"][1]["bytes"], Value::Null);

        let opening = written(&answer.opening(0, true).unwrap());
        assert_eq!(opening["object"], "chat.completion.chunk");
        assert_eq!(opening["usage"], Value::Null);
        assert!(opening.as_object().unwrap().contains_key("usage"));
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        assert_eq!(opening["choices"][0]["delta"], delta);
        let more = written(&answer.chunk(0, &piece, 0, false));
        assert!(!more.as_object().unwrap().contains_key("usage"));
        assert_eq!(more["choices"][0]["delta"], json!({"content": "é"}));
        assert_eq!(more["choices"][0]["finish_reason"], Value::Null);
        let closing = written(&answer.closing(0, AnswerEnd::Length, false).unwrap());
        assert_eq!(closing["choices"][0]["delta"], json!({}));
        assert_eq!(closing["choices"][0]["finish_reason"], "length");
        let figures = written(&answer.figures(Usage::new(1, 0, 1)));
        assert_eq!(figures["choices"], json!([]));
        assert_eq!(figures["usage"]["total_tokens"], 2);
    }
}
