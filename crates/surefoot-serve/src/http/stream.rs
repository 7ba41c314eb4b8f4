//! Sends a request to the engine and answers with one document or with server-sent events.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use surefoot_models::generate::text::Texts;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::{Answer, CallDelta, Form, Usage};
use super::call_reader::{self, AnswerPart, CallReader};
use super::error::ApiError;
use super::format::AskedFormat;
use super::sampling::GenerationParameters;
use super::text_stream::{Piece, SpentTokens, TextStream};
use super::{App, ServedModel, Working};
use crate::chat::CallStyle;
use crate::engine::{EngineError, Generation, GenerationStream};

/// Events that wait for a slow client before its answer waits too.
const BUFFERED: usize = 32;
/// How long a client may take none of them before it is given up, and how long while the server
/// shuts down.
const STALLED: Duration = Duration::from_secs(60);
const STALLED_DRAINING: Duration = Duration::from_secs(5);

/// The most tokens of one answer whose probabilities are given, with the alternatives to them.
const MAX_RATED: usize = 1 << 19;

/// A request for text.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) model: ServedModel,
    pub(super) form: Form,
    /// The field of the request that has the prompts.
    pub(super) prompt_field: &'static str,
    pub(super) prompts: Vec<Vec<u32>>,
    /// What each prompt's answers begin with.
    pub(super) echoes: Vec<String>,
    /// Whether the tokens of the prompts are rated too.
    pub(super) rates_prompt: bool,
    pub(super) answering: GenerationParameters,
    pub(super) logprobs: Option<usize>,
    /// What form the answers must have.
    pub(super) format: Option<AskedFormat>,
    /// How calls of tools are written, if there may be some.
    pub(super) call_style: Option<Arc<CallStyle>>,
    /// Tokens to generate if the request doesn't say.
    pub(super) usual_tokens: usize,
}

impl Ask {
    /// The sequences to run, each checked against what the model can take.
    fn generations(&self, app: &App) -> Result<Vec<Generation>, ApiError> {
        let shape = app.engine().capacity();
        let wanted = self.prompts.len() * self.answering.choices;
        if wanted > shape.queue {
            return Err(ApiError::invalid(format!(
                "{wanted} choices were asked for; {} can be taken at once",
                shape.queue
            ))
            .param("n"));
        }
        for (id, _) in &self.answering.rules.bias {
            check_tokens(&[*id], app.engine().vocab(), "logit_bias")?;
        }
        let constraint = match &self.format {
            None => None,
            Some(asked) => {
                Some(app.constraints.constraint(asked, app.texts()?, app.engine().vocab())?)
            }
        };
        let mut all = Vec::with_capacity(wanted);
        for prompt in &self.prompts {
            check_tokens(prompt, app.engine().vocab(), self.prompt_field)?;
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
                .param(self.prompt_field));
            }
            let max_tokens = self.answering.max_tokens.unwrap_or(self.usual_tokens.min(room));
            let rated = max_tokens + if self.rates_prompt { prompt.len() } else { 0 };
            let rated = self.logprobs.map_or(0, |top| wanted * rated * (1 + top));
            if rated > MAX_RATED {
                return Err(ApiError::invalid(format!(
                    "probabilities of {rated} tokens would be given, alternatives included; \
                     {MAX_RATED} can be: ask for fewer choices, tokens or alternatives"
                ))
                .param("logprobs"));
            }
            for choice in 0..self.answering.choices {
                all.push(Generation {
                    prompt: prompt.clone(),
                    adapter: self.model.adapter,
                    max_tokens,
                    sampling: self.answering.sampling_of(choice),
                    rules: self.answering.rules.clone(),
                    constraint: constraint.clone(),
                    logprobs: self.logprobs,
                    rates_prompt: self.rates_prompt,
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

/// Hands the sequences of `ask` to the engine.
pub(super) fn begin(
    app: &App,
    ask: &Ask,
    working: &Working,
) -> Result<Vec<GenerationStream>, ApiError> {
    working.understood(&ask.model, ask.prompts.iter().map(Vec::len).sum());
    let mut streams = app.engine.generate(ask.generations(app)?, app.deadline())?;
    if let Some(record) = &working.record {
        for stream in &mut streams {
            stream.observe(Arc::clone(record) as _);
        }
    }
    Ok(streams)
}

/// Answers `ask`. `working` says that it is not done.
pub(super) async fn answer(
    app: Arc<App>,
    ask: Ask,
    working: Working,
) -> Result<Response, ApiError> {
    let texts = Arc::clone(app.texts()?);
    let heard = begin(&app, &ask, &working)?;
    let answer = Answer {
        form: ask.form,
        id: working.identity.id(if ask.form == Form::Chat { "chatcmpl" } else { "cmpl" }),
        created: working.identity.created,
        model: ask.model.name.clone(),
        logprobs: ask.logprobs.is_some(),
    };
    let asked = Asked { ask: Arc::new(ask), answer: Arc::new(answer), texts };
    if asked.ask.answering.stream {
        return Ok(streamed(app, asked, heard, working));
    }
    let mut choices = JoinSet::new();
    for (index, heard) in heard.into_iter().enumerate() {
        let asked = asked.clone();
        choices.spawn(async move {
            let mut speaker = TextStream::new(&asked.texts, &asked.ask.answering.stops, heard);
            let mut piece = speaker.whole().await?;
            piece.text.insert_str(0, asked.ask.echo_of(index));
            if let Some(style) = &asked.ask.call_style {
                let id = |number| asked.answer.call_id(index, number);
                (piece.text, piece.calls, piece.end) =
                    call_reader::whole(style, &piece.text, piece.end, id);
            }
            Ok::<_, EngineError>((index, piece, speaker.spent()))
        });
    }
    let mut pieces = Vec::with_capacity(choices.len());
    while let Some(joined) = choices.join_next().await {
        pieces.push(joined.map_err(|_| not_put_together())??);
    }
    pieces.sort_by_key(|(index, ..)| *index);
    let spent: Vec<_> = pieces.iter().map(|(index, _, spent)| (*index, *spent)).collect();
    let usage = asked.usage(&spent);
    let choices = pieces.iter().map(|(index, piece, _)| {
        let before = match asked.ask.rates_prompt {
            true => 0,
            false => asked.ask.echo_of(*index).chars().count(),
        };
        asked.answer.choice(*index, piece, before)
    });
    Ok(Json(asked.answer.whole(choices.collect(), usage)).into_response())
}

fn not_put_together() -> ApiError {
    ApiError::internal("the answer could not be put together")
}

/// What the choices of one request share.
#[derive(Clone)]
struct Asked {
    ask: Arc<Ask>,
    answer: Arc<Answer>,
    texts: Arc<Texts>,
}

impl Asked {
    fn prompt_tokens(&self) -> usize {
        self.ask.prompts.iter().map(Vec::len).sum()
    }

    fn usage(&self, spent: &[(usize, SpentTokens)]) -> Usage {
        let spent = SpentTokens::of_all(spent, self.ask.answering.choices);
        Usage::new(self.prompt_tokens(), spent.cached, spent.count).speculated(spent.proposals)
    }
}

/// Begins an answer that goes on when this has returned.
fn streamed(
    app: Arc<App>,
    asked: Asked,
    heard: Vec<GenerationStream>,
    working: Working,
) -> Response {
    let path = match asked.ask.form {
        Form::Text => "/v1/completions",
        Form::Chat => "/v1/chat/completions",
    };
    events(app, working, path, |events| stream_all(asked, heard, events))
}

/// A response of events that `tell` sends when this has returned.
pub(super) fn events<F>(
    app: Arc<App>,
    working: Working,
    path: &'static str,
    tell: impl FnOnce(Events) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let begun = Instant::now();
    let (sender, stream) = channel(BUFFERED);
    tokio::spawn(async move {
        // Until it has ended: who shuts the server down waits for it.
        let _working = working;
        let events = Events { sender, app: Arc::clone(&app) };
        // Whatever is not told by then is not going to be.
        let _ = tell(events).await;
        app.metrics.took(path, begun.elapsed());
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(ReceiverStream::new(stream)).keep_alive(keep_alive).into_response()
}

/// Nobody is there to be told.
pub(super) struct Gone;

/// Where a stream's events go.
#[derive(Clone)]
pub(super) struct Events {
    sender: Sender<Result<Event, Infallible>>,
    app: Arc<App>,
}

impl Events {
    async fn send(&self, value: &impl Serialize) -> Result<(), Gone> {
        let text = serde_json::to_string(value).map_err(|_| Gone)?;
        self.send_text(&text).await
    }

    async fn send_text(&self, text: &str) -> Result<(), Gone> {
        self.send_event(Event::default().data(text)).await
    }

    /// An event with a name.
    pub(super) async fn send_named(&self, name: &str, value: &impl Serialize) -> Result<(), Gone> {
        let text = serde_json::to_string(value).map_err(|_| Gone)?;
        self.send_event(Event::default().event(name).data(text)).await
    }

    /// Gives up on a client that takes nothing for long, and sooner if the server shuts down.
    async fn send_event(&self, event: Event) -> Result<(), Gone> {
        let begun = Instant::now();
        loop {
            match tokio::time::timeout(STALLED_DRAINING, self.sender.reserve()).await {
                Ok(Ok(room)) => {
                    room.send(Ok(event));
                    return Ok(());
                }
                Ok(Err(_)) => return Err(Gone),
                Err(_) if self.app.is_draining() || begun.elapsed() >= STALLED => return Err(Gone),
                Err(_) => {}
            }
        }
    }
}

/// Streams all choices side by side, then the figures and the end. Returning drops what is heard
/// from the engine, so a client that went away frees its sequences.
async fn stream_all(
    asked: Asked,
    heard: Vec<GenerationStream>,
    events: Events,
) -> Result<(), Gone> {
    let mut choices = JoinSet::new();
    for (index, heard) in heard.into_iter().enumerate() {
        let (asked, events) = (asked.clone(), events.clone());
        choices.spawn(async move {
            tokio::select! {
                told = stream_one(&asked, heard, index, &events) => told.map(|spent| (index, spent)),
                () = events.sender.closed() => Ok((index, SpentTokens::default())),
            }
        });
    }
    let mut spent = Vec::with_capacity(choices.len());
    while let Some(joined) = choices.join_next().await {
        match joined.map_err(|_| not_put_together()).and_then(|told| Ok(told?)) {
            Ok(one) => spent.push(one),
            // An error ends the stream: the others are dropped with the set.
            Err(error) => return events.send(&error.body()).await,
        }
    }
    if asked.ask.answering.usage_in_stream {
        let usage = asked.usage(&spent);
        events.send(&asked.answer.figures(usage)).await?;
    }
    events.send_text("[DONE]").await
}

/// Streams one choice; gives what it took.
async fn stream_one(
    asked: &Asked,
    heard: GenerationStream,
    index: usize,
    events: &Events,
) -> Result<SpentTokens, EngineError> {
    let Asked { ask, answer, texts } = asked;
    let usage = ask.answering.usage_in_stream;
    let mut speaker = TextStream::new(texts, &ask.answering.stops, heard);
    let mut at = 0;
    let echo = ask.echo_of(index);
    if !echo.is_empty() {
        let mut piece = match ask.rates_prompt {
            true => speaker.next().await?,
            false => Piece::default(),
        };
        piece.text.insert_str(0, echo);
        if events.send(&answer.chunk(index, &piece, 0, usage)).await.is_err() {
            return Ok(SpentTokens::default());
        }
        at = echo.chars().count();
    }
    if let Some(opening) = answer.opening(index, usage)
        && events.send(&opening).await.is_err()
    {
        return Ok(SpentTokens::default());
    }
    if let Some(style) = &ask.call_style {
        return stream_calls(asked, speaker, index, events, style).await;
    }
    loop {
        let piece = speaker.next().await?;
        let tells = !piece.text.is_empty() || !piece.tokens.is_empty();
        if (tells || answer.form == Form::Text)
            && events.send(&answer.chunk(index, &piece, at, usage)).await.is_err()
        {
            return Ok(speaker.spent());
        }
        at += piece.text.chars().count();
        if let Some(end) = piece.end {
            if let Some(closing) = answer.closing(index, end, usage) {
                // Who is gone needs no end.
                let _ = events.send(&closing).await;
            }
            return Ok(speaker.spent());
        }
    }
}

/// Streams the text and the calls of one choice; gives what it took.
async fn stream_calls(
    asked: &Asked,
    mut speaker: TextStream<'_>,
    index: usize,
    events: &Events,
    style: &Arc<CallStyle>,
) -> Result<SpentTokens, EngineError> {
    let Asked { ask, answer, .. } = asked;
    let usage = ask.answering.usage_in_stream;
    let mut reader = CallReader::new(style);
    loop {
        let mut piece = speaker.next().await?;
        let end = piece.end.take();
        let parts = reader.push(&std::mem::take(&mut piece.text), end);
        if !piece.tokens.is_empty()
            && events.send(&answer.chunk(index, &piece, 0, usage)).await.is_err()
        {
            return Ok(speaker.spent());
        }
        for part in parts {
            let sent = match part {
                AnswerPart::Content(text) => {
                    let piece = Piece { text, ..Piece::default() };
                    events.send(&answer.chunk(index, &piece, 0, usage)).await
                }
                AnswerPart::Call { number, name } => {
                    let id = answer.call_id(index, number);
                    let delta = CallDelta::begins(number, &id, &name);
                    events.send(&answer.call_chunk(index, delta, usage)).await
                }
                AnswerPart::Arguments { number, text } => {
                    let delta = CallDelta::goes_on(number, &text);
                    events.send(&answer.call_chunk(index, delta, usage)).await
                }
            };
            if sent.is_err() {
                return Ok(speaker.spent());
            }
        }
        if let Some(end) = end {
            if let Some(closing) = answer.closing(index, reader.end(end), usage) {
                // Who is gone needs no end.
                let _ = events.send(&closing).await;
            }
            return Ok(speaker.spent());
        }
    }
}
