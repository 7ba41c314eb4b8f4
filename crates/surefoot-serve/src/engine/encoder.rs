//! Embedding many texts, or scoring many pairs of texts, at once: those of about the same length are stacked and run
//! as one.
//!
//! A text goes at once if nothing runs; else when its bucket is full or it has waited long
//! enough. When a batch fails and recovery is exhausted, its halves are run again, down to the one text
//! that causes the failure, and only that one fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use surefoot::fault::catch;
use surefoot_lanes::{BatchQueue, Next, Request, RequestBatch};
use surefoot_models::ModelError;
use surefoot_models::classify::ClassificationHead;
use surefoot_models::embed::Pooling;
use surefoot_models::generate::text::TokenPair;
use surefoot_models::runner::Runner;
use tokio::sync::oneshot;

use super::activity_log::ActivityLog;
use super::bucket;
use super::capacity::EngineCapacity;
use super::error::EngineError;
use super::pass_budget::PassBudget;
use super::pass_size::PassSizeTuner;
use super::submit::submit_all;
use crate::metrics::Metrics;

/// A vector that will come, or why it won't.
pub type PendingVector = oneshot::Receiver<Result<Vec<f32>, EngineError>>;

/// A text, or a pair of them, that waits for its vector.
struct Text {
    tokens: Vec<u32>,
    /// The token types of a pair; none of a text that is embedded.
    types: Vec<u8>,
    /// None once it was answered.
    sender: Option<oneshot::Sender<Result<Vec<f32>, EngineError>>>,
    metrics: Arc<Metrics>,
}

impl Text {
    /// Whether nobody waits for its vector any more.
    fn is_abandoned(&self) -> bool {
        self.sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Counts and sends its vector, or why there is none.
    fn answer(mut self, answer: Result<Vec<f32>, EngineError>) {
        match &answer {
            Ok(_) => self.metrics.finished(),
            Err(_) => self.metrics.failed(),
        }
        if let Some(sender) = self.sender.take() {
            // Whoever asked may have gone.
            let _ = sender.send(answer);
        }
    }
}

/// A text that is dropped without an answer was lost to a panic: whoever waits is told.
impl Drop for Text {
    fn drop(&mut self) {
        if !self.is_abandoned()
            && let Some(sender) = self.sender.take()
        {
            self.metrics.failed();
            let _ = sender.send(Err(EngineError::Panicked));
        }
    }
}

/// What texts that are run together have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Alike {
    /// The tokens that they are padded to.
    width: usize,
    adapter: Option<usize>,
    task: EncoderTask,
}

/// What is made of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EncoderTask {
    /// One vector of a text.
    Embed,
    /// The numbers of the labels of a pair.
    Classify,
}

impl EncoderTask {
    fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Classify => "classify",
        }
    }
}

/// A text with its vector, or why it has none.
type Answer = (Text, Result<Vec<f32>, EngineError>);

/// Embeds texts.
pub struct Encoder {
    queue: BatchQueue<Alike, Text>,
    runner: Arc<Runner>,
    pooling: Pooling,
    head: Option<Arc<ClassificationHead>>,
    capacity: EngineCapacity,
    pass_size: PassSizeTuner,
    budget: Arc<PassBudget>,
    metrics: Arc<Metrics>,
    activity: Arc<ActivityLog>,
}

impl Encoder {
    pub(crate) fn new(
        runner: Arc<Runner>,
        (pooling, head): (Pooling, Option<Arc<ClassificationHead>>),
        capacity: EngineCapacity,
        budget: Arc<PassBudget>,
        metrics: Arc<Metrics>,
        activity: Arc<ActivityLog>,
    ) -> Self {
        let queue = BatchQueue::new(capacity.queue);
        let pass_size = PassSizeTuner::new(capacity.pass_tokens);
        Self { queue, runner, pooling, head, capacity, pass_size, budget, metrics, activity }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Runs a pass over `count` short texts, or as many as go through in one.
    pub(crate) fn warm_up(&self, count: usize) -> Result<(), EngineError> {
        let width = bucket::width(1).min(self.capacity.text_tokens);
        let texts = vec![vec![0]; count.min(self.capacity.pass_tokens / width).max(1)];
        self.runner.run(&self.capacity.request("warm up"), |attempt| {
            let least = self.capacity.least_pass(attempt, texts.len(), width);
            attempt.model().embed_in(&texts, self.pooling, least, None)
        })?;
        Ok(())
    }

    /// Queues texts to be embedded, all or none.
    pub(crate) fn submit(
        &self,
        texts: Vec<Vec<u32>>,
        adapter: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<Vec<PendingVector>, EngineError> {
        let texts = texts.into_iter().map(|ids| TokenPair { ids, types: Vec::new() });
        self.submit_all(texts, adapter, EncoderTask::Embed, deadline)
    }

    /// Queues pairs of texts to be classified, all or none.
    pub(crate) fn submit_pairs(
        &self,
        pairs: Vec<TokenPair>,
        adapter: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<Vec<PendingVector>, EngineError> {
        self.submit_all(pairs.into_iter(), adapter, EncoderTask::Classify, deadline)
    }

    fn submit_all(
        &self,
        texts: impl ExactSizeIterator<Item = TokenPair>,
        adapter: Option<usize>,
        task: EncoderTask,
        deadline: Option<Instant>,
    ) -> Result<Vec<PendingVector>, EngineError> {
        let mut items = Vec::with_capacity(texts.len());
        let mut answers = Vec::with_capacity(texts.len());
        for TokenPair { ids: tokens, types } in texts {
            let (sender, answer) = oneshot::channel();
            let metrics = Arc::clone(&self.metrics);
            let alike = Alike { width: bucket::width(tokens.len()), adapter, task };
            items.push((alike, Text { tokens, types, sender: Some(sender), metrics }));
            answers.push(answer);
        }
        let queued = submit_all(&self.queue, items, deadline, Text::is_abandoned, &self.metrics);
        match queued {
            Ok(()) => Ok(answers),
            Err(refused) => {
                drop(answers);
                drop(refused.items);
                Err(refused.error)
            }
        }
    }

    /// Embeds until the queue is closed and all that was accepted is done.
    pub(crate) fn work(&self) {
        loop {
            match self.queue.next_batch(self.capacity.texts, self.capacity.patience) {
                Next::Closed => return,
                Next::Expired(requests) => {
                    for request in requests {
                        let waited = request.arrived().elapsed().max(Duration::from_millis(1));
                        request.item.answer(Err(EngineError::Expired(waited)));
                    }
                }
                Next::Batch(batch) => {
                    // Guarded passes catch their own panics: another one is a defect of the
                    // program. The texts answer for themselves when they are dropped.
                    if let Err(panic) = catch(|| self.run(batch)) {
                        self.activity.panicked("embed", &panic);
                    }
                }
            }
        }
    }

    /// Embeds a batch, in as many passes as it takes, and answers.
    fn run(&self, mut batch: RequestBatch<'_, Alike, Text>) {
        self.metrics.queued(batch.key.task.name(), batch.requests.iter().map(Request::arrived));
        let mut texts: Vec<Text> = Vec::with_capacity(batch.requests.len());
        for request in batch.requests.drain(..) {
            if request.item.is_abandoned() {
                self.metrics.cancelled();
            } else {
                texts.push(request.item);
            }
        }
        let alike = batch.key;
        let mut flying = Some(batch);
        while !texts.is_empty() {
            let most = self.pass_size.how_many(texts.len(), alike.width);
            let rest = texts.split_off(most);
            let answers = self.embed(texts, alike, true);
            // The next batch should not wait for this one's answers to be sent.
            if rest.is_empty()
                && let Some(batch) = flying.take()
            {
                batch.end(answers.len());
            }
            for (text, answer) in answers {
                text.answer(answer);
            }
            texts = rest;
        }
        self.activity.report_if_due();
    }

    /// Embeds `texts`, in halves if they fail together. One that a device fails is given one more
    /// try: what failed it may have been a batch before it.
    fn embed(&self, mut texts: Vec<Text>, alike: Alike, again: bool) -> Vec<Answer> {
        let width = alike.width;
        let permit = self.budget.acquire(texts.len() * width);
        let begun = Instant::now();
        let taken = |text: &mut Text| TokenPair {
            ids: std::mem::take(&mut text.tokens),
            types: std::mem::take(&mut text.types),
        };
        let tokens: Vec<TokenPair> = texts.iter_mut().map(taken).collect();
        let embedded = self.guarded(&tokens, alike);
        drop(permit);
        let error = match embedded {
            Ok(vectors) => {
                self.metrics.batch(alike.task.name(), texts.len(), begun.elapsed());
                self.pass_size.passed(texts.len() * width, begun.elapsed());
                self.metrics.embedded_tokens(tokens.iter().map(|text| text.ids.len()).sum());
                let checked = |vector: Vec<f32>| {
                    let finite = vector.iter().all(|number| number.is_finite());
                    if finite { Ok(vector) } else { Err(EngineError::NotFinite) }
                };
                return texts.into_iter().zip(vectors.into_iter().map(checked)).collect();
            }
            Err(error) => EngineError::from(error),
        };
        let again = again && matches!(error, EngineError::Fault(_));
        if texts.len() == 1 && !again {
            return texts.into_iter().map(|text| (text, Err(error.clone()))).collect();
        }
        for (text, tokens) in texts.iter_mut().zip(tokens) {
            (text.tokens, text.types) = (tokens.ids, tokens.types);
        }
        if texts.len() == 1 {
            return self.embed(texts, alike, false);
        }
        let half = texts.split_off(texts.len() / 2);
        let mut answers = self.embed(texts, alike, true);
        answers.extend(self.embed(half, alike, true));
        answers
    }

    fn guarded(&self, tokens: &[TokenPair], alike: Alike) -> Result<Vec<Vec<f32>>, ModelError> {
        let request = self.capacity.request(alike.task.name()).samples(tokens.len());
        let outcome = self.runner.run(&request, |attempt| {
            let mut vectors = Vec::with_capacity(tokens.len());
            for part in attempt.ranges() {
                let width = alike.width.min(self.capacity.text_tokens);
                let least = self.capacity.least_pass(attempt, part.len(), width);
                let (texts, adapter) = (&tokens[part], alike.adapter);
                let rows = match (alike.task, &self.head) {
                    (EncoderTask::Classify, Some(head)) => {
                        attempt.model().classify_in(texts, head, least, adapter)?
                    }
                    _ => {
                        let texts: Vec<Vec<u32>> =
                            texts.iter().map(|text| text.ids.clone()).collect();
                        attempt.model().embed_in(&texts, self.pooling, least, adapter)?
                    }
                };
                vectors.extend(rows.numbers.chunks_exact(rows.cols).map(<[f32]>::to_vec));
            }
            Ok(vectors)
        })?;
        Ok(outcome.value)
    }
}
