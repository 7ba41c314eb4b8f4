//! Asking the engine, and answering whole or as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use surefoot_models::generate::text::Texts;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, channel};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::{Answer, Form, Usage};
use super::error::ApiError;
use super::sampling::Answering;
use super::speaker::{Piece, Speaker};
use super::{App, now};
use crate::engine::{EngineError, Generation, Said};

/// Events that wait for a slow client before its answer waits too.
const BUFFERED: usize = 32;

/// A request for text.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) form: Form,
    pub(super) prompts: Vec<Vec<u32>>,
    /// What each prompt's answers begin with.
    pub(super) echoes: Vec<String>,
    pub(super) answering: Answering,
    pub(super) logprobs: Option<usize>,
    /// Tokens to generate if the request doesn't say.
    pub(super) usual_tokens: usize,
}

impl Ask {
    /// The sequences to run, each checked against what the model can take.
    fn generations(&self, app: &App) -> Result<Vec<Generation>, ApiError> {
        let shape = app.engine().shape();
        let wanted = self.prompts.len() * self.answering.choices;
        if wanted > shape.queue {
            return Err(ApiError::invalid(format!(
                "{wanted} choices were asked for; {} can be taken at once",
                shape.queue
            ))
            .param("n"));
        }
        let mut all = Vec::with_capacity(wanted);
        for prompt in &self.prompts {
            check_tokens(prompt, app.engine().vocab(), "prompt")?;
            let room = shape.context.saturating_sub(prompt.len());
            let asked = self.answering.max_tokens.unwrap_or(1);
            if asked > room {
                return Err(ApiError::invalid(format!(
                    "the prompt has {} tokens and {asked} were asked for behind it; prompt and \
                     answer can have {} together",
                    prompt.len(),
                    shape.context
                ))
                .code("context_length_exceeded")
                .param("messages_or_prompt"));
            }
            let max_tokens = self.answering.max_tokens.unwrap_or(self.usual_tokens.min(room));
            for choice in 0..self.answering.choices {
                all.push(Generation {
                    prompt: prompt.clone(),
                    max_tokens,
                    sampling: self.answering.sampling_of(choice),
                    logprobs: self.logprobs,
                });
            }
        }
        Ok(all)
    }

    /// The index of a choice's prompt.
    fn echo_of(&self, index: usize) -> &str {
        self.echoes.get(index / self.answering.choices).map_or("", String::as_str)
    }
}

/// Checks token ids before they are looked up.
pub(super) fn check_tokens(tokens: &[u32], vocab: usize, param: &str) -> Result<(), ApiError> {
    if tokens.is_empty() {
        return Err(ApiError::invalid(format!("'{param}' has no tokens")).param(param));
    }
    match tokens.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(ApiError::invalid(format!(
            "token {id} is not in the vocabulary, which has {vocab} tokens (0 to {})",
            vocab - 1
        ))
        .param(param)),
        None => Ok(()),
    }
}

/// Answers `ask`.
pub(super) async fn answer(app: Arc<App>, ask: Ask) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let texts = Arc::clone(app.texts()?);
    let generations = ask.generations(&app)?;
    let answer = Answer {
        form: ask.form,
        id: app.id(if ask.form == Form::Chat { "chatcmpl" } else { "cmpl" }),
        created: now(),
        model: app.settings.name.clone(),
        logprobs: ask.logprobs.is_some(),
    };
    let heard = app.engine.generate(generations, app.deadline())?;
    if ask.answering.stream {
        let path = match ask.form {
            Form::Text => "/v1/completions",
            Form::Chat => "/v1/chat/completions",
        };
        let (events, stream) = channel(BUFFERED);
        tokio::spawn(async move {
            stream_all(ask, answer, texts, heard, &events).await;
            app.metrics.took(path, begun.elapsed());
        });
        let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
        return Ok(Sse::new(ReceiverStream::new(stream)).keep_alive(keep_alive).into_response());
    }
    let prompt = ask.prompts.iter().map(Vec::len).sum();
    let mut usage = Usage { prompt, completion: 0 };
    let mut choices = Vec::with_capacity(heard.len());
    for (index, heard) in heard.into_iter().enumerate() {
        let mut speaker = Speaker::new(&texts, &ask.answering.stops, heard);
        let mut piece = speaker.whole().await?;
        let echo = ask.echo_of(index);
        piece.text.insert_str(0, echo);
        usage.completion += speaker.count();
        choices.push(answer.choice(index, &piece, echo.chars().count()));
    }
    Ok(Json(answer.whole(choices, usage)).into_response())
}

type Events = Sender<Result<Event, Infallible>>;

/// Nobody is there to be told.
struct Gone;

async fn send(events: &Events, value: &Value) -> Result<(), Gone> {
    events.send(Ok(Event::default().data(value.to_string()))).await.map_err(|_| Gone)
}

/// Streams all choices side by side, then the figures and the end. Returning drops what is heard
/// from the engine, so a client that went away frees its sequences.
async fn stream_all(
    ask: Ask,
    answer: Answer,
    texts: Arc<Texts>,
    heard: Vec<UnboundedReceiver<Said>>,
    events: &Events,
) {
    let prompt = ask.prompts.iter().map(Vec::len).sum();
    let with_usage = ask.answering.usage_in_stream;
    let (ask, answer) = (Arc::new(ask), Arc::new(answer));
    let mut choices = JoinSet::new();
    for (index, heard) in heard.into_iter().enumerate() {
        let (ask, answer, texts) = (Arc::clone(&ask), Arc::clone(&answer), Arc::clone(&texts));
        let events = events.clone();
        choices.spawn(async move {
            tokio::select! {
                told = stream_one(&ask, &answer, &texts, heard, index, &events) => told,
                () = events.closed() => Ok(0),
            }
        });
    }
    let mut usage = Usage { prompt, completion: 0 };
    while let Some(joined) = choices.join_next().await {
        match joined {
            Ok(Ok(count)) => usage.completion += count,
            // An error ends the stream: the others are dropped with the set.
            Ok(Err(error)) => {
                let _ = send(events, &ApiError::from(error).body()).await;
                return;
            }
            Err(_) => {
                let error = ApiError::internal("the answer could not be put together");
                let _ = send(events, &error.body()).await;
                return;
            }
        }
    }
    if with_usage && send(events, &answer.figures(usage)).await.is_err() {
        return;
    }
    let _ = events.send(Ok(Event::default().data("[DONE]"))).await;
}

/// Streams one choice; gives how many tokens it had.
async fn stream_one(
    ask: &Ask,
    answer: &Answer,
    texts: &Texts,
    heard: UnboundedReceiver<Said>,
    index: usize,
    events: &Events,
) -> Result<usize, EngineError> {
    let usage = ask.answering.usage_in_stream;
    let mut speaker = Speaker::new(texts, &ask.answering.stops, heard);
    let mut at = 0;
    let echo = ask.echo_of(index);
    if !echo.is_empty() {
        let piece = Piece { text: echo.to_owned(), ..Piece::default() };
        if send(events, &answer.chunk(index, &piece, 0, usage)).await.is_err() {
            return Ok(0);
        }
        at = echo.chars().count();
    }
    if let Some(opening) = answer.opening(index, usage)
        && send(events, &opening).await.is_err()
    {
        return Ok(0);
    }
    loop {
        let piece = speaker.next().await?;
        let tells = !piece.text.is_empty() || !piece.tokens.is_empty();
        if (tells || answer.form == Form::Text)
            && send(events, &answer.chunk(index, &piece, at, usage)).await.is_err()
        {
            return Ok(speaker.count());
        }
        at += piece.text.chars().count();
        if let Some(end) = piece.end {
            if let Some(closing) = answer.closing(index, end, usage) {
                let _ = send(events, &closing).await;
            }
            return Ok(speaker.count());
        }
    }
}
