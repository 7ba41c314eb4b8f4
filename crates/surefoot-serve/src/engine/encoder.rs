//! Embedding many texts at once: those of about the same length are stacked and run as one.
//!
//! A text goes at once if nothing runs; else when its bucket is full or it has waited long
//! enough. When a batch fails for good its halves are run again, down to the one text that is to
//! blame, and only that one fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use surefoot::recover::Confirm;
use surefoot::{BoxError, Burn, Fault};
use surefoot_lanes::{BatchQueue, Next, Request};
use surefoot_models::ModelError;
use surefoot_models::embed::Pooling;
use tokio::sync::oneshot;

use super::bucket;
use super::error::EngineError;
use super::pass_budget::PassBudget;
use super::pass_size::PassSizeTuner;
use super::pulse::Pulse;
use super::resident::{NotLoaded, Resident, device_error};
use super::shape::Shape;
use super::submit::submit_all;
use crate::metrics::Metrics;

/// A vector that will come, or why it won't.
pub type ToCome = oneshot::Receiver<Result<Vec<f32>, EngineError>>;

/// A text that waits for its vector.
struct Text {
    tokens: Vec<u32>,
    told: oneshot::Sender<Result<Vec<f32>, EngineError>>,
}

/// A text with its vector, or why it has none.
type Answer = (Text, Result<Vec<f32>, EngineError>);

/// Embeds texts.
pub struct Encoder {
    queue: BatchQueue<usize, Text>,
    resident: Arc<Resident>,
    pooling: Pooling,
    shape: Shape,
    pass_size: PassSizeTuner,
    budget: Arc<PassBudget>,
    metrics: Arc<Metrics>,
    pulse: Arc<Pulse>,
}

/// The vectors of a batch are on the host already; a caller's mistake is no fault of a device.
struct Done(Result<Vec<Vec<f32>>, ModelError>);

impl Confirm<Burn> for Done {
    fn confirm(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }
}

impl Encoder {
    pub(crate) fn new(
        resident: Arc<Resident>,
        pooling: Pooling,
        shape: Shape,
        budget: Arc<PassBudget>,
        metrics: Arc<Metrics>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let queue = BatchQueue::new(shape.queue);
        let pass_size = PassSizeTuner::new(shape.pass_tokens);
        Self { queue, resident, pooling, shape, pass_size, budget, metrics, pulse }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Runs a pass over `count` short texts, or as many as go through in one.
    pub(crate) fn warm_up(&self, count: usize) -> Result<(), EngineError> {
        let width = bucket::width(1).min(self.shape.text_tokens);
        let texts = vec![vec![0]; count.min(self.shape.pass_tokens / width).max(1)];
        self.resident.ahead("warm up", |loaded| {
            let least = loaded.least(texts.len(), width, &self.shape);
            loaded.model.embed_in(&texts, self.pooling, least).map(|_| ())
        })
    }

    /// Queues all or none.
    pub(crate) fn submit(
        &self,
        texts: Vec<Vec<u32>>,
        deadline: Option<Instant>,
    ) -> Result<Vec<ToCome>, EngineError> {
        let mut items = Vec::with_capacity(texts.len());
        let mut heard = Vec::with_capacity(texts.len());
        for tokens in texts {
            let (told, hear) = oneshot::channel();
            items.push((bucket::width(tokens.len()), Text { tokens, told }));
            heard.push(hear);
        }
        submit_all(&self.queue, items, deadline, |text| text.told.is_closed(), &self.metrics)?;
        Ok(heard)
    }

    /// Embeds until the queue is closed and all that was accepted is done.
    pub(crate) fn work(&self) {
        loop {
            match self.queue.next_batch(self.shape.texts, self.shape.patience) {
                Next::Closed => return,
                Next::Expired(requests) => {
                    for request in requests {
                        let waited = request.arrived().elapsed().max(Duration::from_millis(1));
                        self.answer(request.item, Err(EngineError::Expired(waited)));
                    }
                }
                Next::Batch(mut batch) => {
                    self.metrics.queued("embed", batch.requests.iter().map(Request::arrived));
                    let mut texts: Vec<Text> = Vec::with_capacity(batch.requests.len());
                    for request in batch.requests.drain(..) {
                        if request.item.told.is_closed() {
                            self.metrics.cancelled();
                        } else {
                            texts.push(request.item);
                        }
                    }
                    let width = batch.key;
                    let mut flying = Some(batch);
                    while !texts.is_empty() {
                        let most = self.pass_size.how_many(texts.len(), width);
                        let rest = texts.split_off(most);
                        let answers = self.embed(texts, width, true);
                        // The next batch should not wait for this one's answers to be told.
                        if rest.is_empty()
                            && let Some(batch) = flying.take()
                        {
                            batch.end(answers.len());
                        }
                        for (text, answer) in answers {
                            self.answer(text, answer);
                        }
                        texts = rest;
                    }
                }
            }
            self.pulse.beat();
        }
    }

    /// Embeds `texts`, in halves if they fail together. One that a device fails is given one more
    /// try: what failed it may have been a batch before it.
    fn embed(&self, mut texts: Vec<Text>, width: usize, again: bool) -> Vec<Answer> {
        let permit = self.budget.acquire(texts.len() * width);
        let begun = Instant::now();
        let tokens: Vec<Vec<u32>> =
            texts.iter_mut().map(|text| std::mem::take(&mut text.tokens)).collect();
        let embedded = self.guarded(&tokens, width);
        drop(permit);
        let error = match embedded {
            Ok(Done(Ok(vectors))) => {
                self.metrics.batch("embed", texts.len(), begun.elapsed());
                self.pass_size.passed(texts.len() * width, begun.elapsed());
                self.metrics.embedded_tokens(tokens.iter().map(Vec::len).sum());
                let checked = |vector: Vec<f32>| {
                    let finite = vector.iter().all(|number| number.is_finite());
                    if finite { Ok(vector) } else { Err(EngineError::NotFinite) }
                };
                return texts.into_iter().zip(vectors.into_iter().map(checked)).collect();
            }
            Ok(Done(Err(error))) => EngineError::from(error),
            Err(fault) => EngineError::from(fault),
        };
        let again = again && matches!(error, EngineError::Fault(_));
        if texts.len() == 1 && !again {
            return texts.into_iter().map(|text| (text, Err(error.clone()))).collect();
        }
        for (text, tokens) in texts.iter_mut().zip(tokens) {
            text.tokens = tokens;
        }
        if texts.len() == 1 {
            return self.embed(texts, width, false);
        }
        let half = texts.split_off(texts.len() / 2);
        let mut answers = self.embed(texts, width, true);
        answers.extend(self.embed(half, width, true));
        answers
    }

    fn guarded(&self, tokens: &[Vec<u32>], width: usize) -> Result<Done, Fault> {
        self.resident
            .task("embed")
            .run_in_parts(tokens.len(), |step| {
                let loaded = match self.resident.on(step) {
                    Ok(loaded) => loaded,
                    Err(NotLoaded::Model(error)) => return Ok(Done(Err(error))),
                    Err(NotLoaded::Device(error)) => return Err(error),
                };
                let mut vectors = Vec::with_capacity(tokens.len());
                for part in step.ranges(tokens.len()) {
                    let least =
                        loaded.least(part.len(), width.min(self.shape.text_tokens), &self.shape);
                    match loaded.model.embed_in(&tokens[part], self.pooling, least) {
                        Ok(rows) => {
                            vectors
                                .extend(rows.numbers.chunks_exact(rows.cols).map(<[f32]>::to_vec));
                        }
                        Err(error @ ModelError::Device { .. }) => {
                            return Err::<_, BoxError>(device_error(error));
                        }
                        Err(error) => return Ok(Done(Err(error))),
                    }
                }
                Ok(Done(Ok(vectors)))
            })
            .map(|outcome| outcome.value)
    }

    fn answer(&self, text: Text, answer: Result<Vec<f32>, EngineError>) {
        match &answer {
            Ok(_) => self.metrics.finished(),
            Err(_) => self.metrics.failed(),
        }
        // Whoever asked may have gone.
        let _ = text.told.send(answer);
    }
}
