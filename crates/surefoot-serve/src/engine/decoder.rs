//! Decoding many sequences at once, where new ones join between two tokens.
//!
//! One thread decodes. Guarded work is a run of steps, short enough that faults, drills and the
//! journal see it often, and long enough that they don't see every token. In each step:
//!
//! 1. who was abandoned or is out of time leaves;
//! 2. who waits joins, as far as there is room and not for long, and is run over its prompt;
//! 3. all are run for one token, which each is told at once.
//!
//! A sequence's tokens are all there is to it: after a fault the cache is made anew from them,
//! on whatever device the guard goes to, so a retry repeats no token and loses none. When memory
//! runs out and the ladder splits, fewer sequences run at once and the others are parked until
//! there is room again. When the ladder ends, each sequence is tried alone, and only those that
//! fail alone fail.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use surefoot::recover::Step;
use surefoot::{BoxError, Fault};
use surefoot_lanes::{BatchQueue, Next, Request};
use surefoot_models::generate::session::{Decoding, Passes};
use surefoot_models::{ModelError, Rows};

use super::bucket;
use super::error::EngineError;
use super::pulse::Pulse;
use super::resident::{Loaded, Place, Resident, device_error};
use super::sequence::{Fate, Generation, Hearing, Sequence};
use super::shape::Shape;
use super::submit::submit_all;
use crate::metrics::Metrics;

/// How long one guarded run of steps lasts.
const RUN: Duration = Duration::from_millis(100);

/// How long those who ask again as soon as they are answered are waited for: sequences that began
/// together end together.
const GATHER: Duration = Duration::from_millis(2);

/// For how many steps a sequence waits for others to join with it while many are decoded, and how
/// long at most.
const GATHERING_STEPS: u32 = 8;
const LONGEST_GATHERING: Duration = Duration::from_millis(250);

/// Decodes sequences.
pub struct Decoder {
    queue: BatchQueue<(), Sequence>,
    resident: Arc<Resident>,
    ends: Vec<u32>,
    shape: Shape,
    metrics: Arc<Metrics>,
    pulse: Arc<Pulse>,
}

/// What the decoding thread works on. The first sequences are in `decoding`, in its order; those
/// behind them have still to join.
#[derive(Default)]
struct Live {
    sequences: Vec<Sequence>,
    decoding: Option<(Place, Decoding)>,
    /// A run was cut short, so `decoding` can't be trusted.
    broken: bool,
    parked: VecDeque<Sequence>,
    /// Only this one, for one step: to find out who makes the others fail.
    alone: bool,
    /// How many ended with the last step, and how long it took.
    ended_last: usize,
    step_took: Duration,
    /// Tokens of prompts a second, in the fastest of the last passes over some.
    prompt_rate: f64,
}

impl Live {
    fn joined(&self) -> usize {
        self.decoding.as_ref().map_or(0, |(_, decoding)| decoding.len())
    }

    /// How many of `count` sequences of `width` tokens join in one pass: all that fit into `most`
    /// tokens, since those that join together end together; and if others are being decoded, no
    /// more than they can wait for.
    fn how_many_join(&self, count: usize, width: usize, most: usize) -> usize {
        let soon = self.prompt_rate * RUN.as_secs_f64();
        let most = if self.joined() > 0 && soon >= 1.0 { most.min(soon as usize) } else { most };
        (most / width).clamp(1, count.max(1))
    }

    fn ran_prompts(&mut self, tokens: usize, time: Duration) {
        // A pass that waits for a kernel to be made says nothing of the next.
        let rate = tokens as f64 / time.as_secs_f64().max(1e-9);
        self.prompt_rate = rate.max(self.prompt_rate * 0.9);
    }

    fn take_out(&mut self, at: usize) -> Sequence {
        let joined = self.joined();
        match &mut self.decoding {
            Some((_, decoding)) if at < joined => {
                decoding.leave(at);
                self.sequences.swap(at, joined - 1);
                self.sequences.remove(joined - 1)
            }
            _ => self.sequences.remove(at),
        }
    }
}

impl Decoder {
    pub(crate) fn new(
        resident: Arc<Resident>,
        ends: Vec<u32>,
        shape: Shape,
        metrics: Arc<Metrics>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let queue = BatchQueue::new(shape.queue);
        Self { queue, resident, ends, shape, metrics, pulse }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Decodes a token of `count` short sequences.
    pub(crate) fn warm_up(&self, count: usize) -> Result<(), EngineError> {
        let width = bucket::width(1).min(self.shape.context);
        let at_once = (self.shape.pass_tokens / width).max(1);
        self.resident.ahead("warm up", |loaded| {
            let mut decoding = Decoding::new(&loaded.model, self.shape.limits());
            let mut passes = loaded.model.passes();
            while decoding.len() < count {
                let joining = vec![vec![0]; at_once.min(count - decoding.len())];
                let least = loaded.least(joining.len(), width, &self.shape);
                decoding.join(&mut passes, &joining, least)?;
            }
            let rows = loaded.least(count, 1, &self.shape).rows;
            decoding.step(&mut passes, &vec![0; count], rows).map(|_| ())
        })
    }

    /// Queues all or none.
    pub(crate) fn submit(
        &self,
        generations: Vec<Generation>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Hearing>, EngineError> {
        let mut items = Vec::with_capacity(generations.len());
        let mut heard = Vec::with_capacity(generations.len());
        for generation in generations {
            let (sequence, hearing) = Sequence::new(generation, deadline);
            items.push(((), sequence));
            heard.push(hearing);
        }
        submit_all(&self.queue, items, deadline, Sequence::is_abandoned, &self.metrics)?;
        Ok(heard)
    }

    /// Decodes until the queue is closed and all that was accepted is done.
    pub(crate) fn work(&self) {
        let live = RefCell::new(Live::default());
        loop {
            match self.queue.next_batch(self.shape.sequences, GATHER) {
                Next::Closed => return,
                Next::Expired(requests) => self.expire(requests),
                Next::Batch(mut batch) => {
                    self.metrics.queued("decode", batch.requests.iter().map(Request::arrived));
                    live.borrow_mut()
                        .sequences
                        .extend(batch.requests.drain(..).map(|request| request.item));
                    while !live.borrow().sequences.is_empty() || !live.borrow().parked.is_empty() {
                        self.run(&live);
                        self.pulse.beat();
                    }
                    // With nothing to decode the cache only takes memory.
                    let mut live = live.borrow_mut();
                    live.decoding = None;
                    batch.end(live.ended_last.saturating_sub(self.queue.len()));
                }
            }
            self.pulse.beat();
        }
    }

    fn expire(&self, requests: Vec<Request<Sequence>>) {
        let now = Instant::now();
        for request in requests {
            self.metrics.failed();
            request.item.expire(now);
        }
    }

    /// One guarded run, and the search for the culprit if it ends in a fault.
    fn run(&self, live: &RefCell<Live>) {
        if self.guarded(live).is_ok() {
            return;
        }
        let mut suspects: VecDeque<Sequence> = {
            let mut live = live.borrow_mut();
            live.decoding = None;
            let mut suspects: VecDeque<_> = std::mem::take(&mut live.sequences).into();
            if suspects.is_empty() {
                // Only parked ones are left, and there was no room even for one.
                suspects.append(&mut live.parked);
            }
            suspects
        };
        let mut cleared = Vec::with_capacity(suspects.len());
        while let Some(suspect) = suspects.pop_front() {
            {
                let mut live = live.borrow_mut();
                live.sequences = vec![suspect];
                live.alone = true;
            }
            let outcome = self.guarded(live);
            let mut live = live.borrow_mut();
            live.alone = false;
            live.decoding = None;
            let survivors = live.sequences.drain(..);
            match outcome {
                Ok(_) => cleared.extend(survivors),
                Err(fault) => self.fail(survivors, &fault),
            }
        }
        live.borrow_mut().sequences = cleared;
    }

    fn fail(&self, sequences: impl Iterator<Item = Sequence>, fault: &Fault) {
        for sequence in sequences {
            self.metrics.failed();
            sequence.fail(fault.clone().into());
        }
    }

    fn guarded(&self, live: &RefCell<Live>) -> Result<usize, Fault> {
        self.resident
            .task("decode")
            .run_in_parts(self.shape.sequences, |step| self.attempt(step, &mut live.borrow_mut()))
            .map(|outcome| outcome.value)
    }

    /// One try of a run. Gives how many sequences may run at once.
    fn attempt(&self, step: &Step<'_>, live: &mut Live) -> Result<usize, BoxError> {
        let room = step.ranges(self.shape.sequences).map(|part| part.len()).max().unwrap_or(1);
        if live.broken || step.attempt() > 1 {
            // Before the model is loaded elsewhere: its memory may be what is short.
            live.decoding = None;
        }
        let loaded = self.resident.on(step)?;
        if live.decoding.as_ref().is_none_or(|(place, _)| *place != loaded.place) {
            let decoding = Decoding::new(&loaded.model, self.shape.limits());
            live.decoding = Some((loaded.place, decoding));
        }
        live.broken = true;
        while live.sequences.len() > room {
            let parked = live.take_out(live.sequences.len() - 1);
            live.parked.push_front(parked);
        }
        let mut passes = loaded.model.passes();
        let until = Instant::now() + RUN;
        loop {
            self.let_go(live);
            self.admit(live, room);
            self.join_all(live, room, &mut passes, &loaded)?;
            self.step(live, &mut passes, &loaded)?;
            if live.sequences.is_empty() || live.alone || Instant::now() >= until {
                break;
            }
        }
        live.broken = false;
        Ok(room)
    }

    /// Takes out who was abandoned or is out of time.
    fn let_go(&self, live: &mut Live) {
        let now = Instant::now();
        let goes = |sequence: &Sequence| sequence.is_abandoned() || sequence.is_expired(now);
        let mut gone = Vec::new();
        let mut at = 0;
        while at < live.sequences.len() {
            if goes(&live.sequences[at]) {
                gone.push(live.take_out(at));
            } else {
                at += 1;
            }
        }
        if live.parked.iter().any(goes) {
            let (leave, stay): (VecDeque<_>, _) = live.parked.drain(..).partition(goes);
            live.parked = stay;
            gone.extend(leave);
        }
        for sequence in gone {
            if sequence.has_enough() {
                self.metrics.finished();
            } else if sequence.is_abandoned() {
                self.metrics.cancelled();
            } else {
                self.metrics.failed();
                sequence.expire(now);
            }
        }
    }

    /// Lets those in who waited longest: the parked ones were in already.
    fn admit(&self, live: &mut Live, room: usize) {
        if live.alone {
            return;
        }
        while live.sequences.len() < room {
            let Some(parked) = live.parked.pop_front() else { break };
            live.sequences.push(parked);
        }
        let expired = self.queue.take_expired();
        if !expired.is_empty() {
            self.expire(expired);
        }
        if live.sequences.len() < room && !self.queue.is_empty() {
            let joining = self.queue.join(&(), room - live.sequences.len());
            self.metrics.queued("decode", joining.iter().map(Request::arrived));
            live.sequences.extend(joining.into_iter().map(|request| request.item));
        }
    }

    /// Lets those that wait join, pass after pass, and who comes meanwhile too. Those that are
    /// still left after a while wait for the next step, so that nobody waits long for a token.
    fn join_all(
        &self,
        live: &mut Live,
        room: usize,
        passes: &mut Passes<'_>,
        loaded: &Loaded,
    ) -> Result<(), BoxError> {
        let until = Instant::now() + RUN;
        while should_join(live) {
            self.join(live, passes, loaded)?;
            if Instant::now() >= until {
                break;
            }
            self.admit(live, room);
        }
        Ok(())
    }

    /// Runs some that wait over their tokens: those of the first one's length, as many as fit
    /// in one pass.
    fn join(
        &self,
        live: &mut Live,
        passes: &mut Passes<'_>,
        loaded: &Loaded,
    ) -> Result<(), BoxError> {
        let joined = live.joined();
        let Some(first) = live.sequences.get(joined) else { return Ok(()) };
        let width = bucket::width(first.tokens.len());
        let is_alike = |sequence: &Sequence| bucket::width(sequence.tokens.len()) == width;
        let waiting = live.sequences.split_off(joined);
        let (mut alike, mut others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_alike);
        let joining = live.how_many_join(alike.len(), width, self.shape.pass_tokens);
        let rest = alike.split_off(joining);
        let end = joined + alike.len();
        live.sequences.append(&mut alike);
        // Those that are left keep their order: who came first joins next.
        others.extend(rest);
        others.sort_by_key(|sequence| sequence.accepted);
        live.sequences.append(&mut others);
        let begun = Instant::now();
        let tokens: Vec<Vec<u32>> =
            live.sequences[joined..end].iter().map(|sequence| sequence.tokens.clone()).collect();
        let least = loaded.least(tokens.len(), width.min(self.shape.context), &self.shape);
        let Some((_, decoding)) = &mut live.decoding else { return Ok(()) };
        match decoding.join(passes, &tokens, least) {
            Ok(logits) => {
                // One that joins again after a fault has had its prompt counted.
                let fresh = live.sequences[joined..end].iter().filter(|s| s.generated() == 0);
                self.metrics.prompt_tokens(fresh.map(|s| s.prompt).sum());
                self.metrics.batch("prompt", tokens.len(), begun.elapsed());
                live.ran_prompts(tokens.len() * width, begun.elapsed());
                self.accept(live, joined, &logits);
                Ok(())
            }
            Err(error @ ModelError::Device { .. }) => Err(device_error(error)),
            // Refused before it ran: those that are decoded are as they were.
            Err(error) => {
                for sequence in live.sequences.drain(joined..end) {
                    self.metrics.failed();
                    sequence.fail(EngineError::Request(error.to_string()));
                }
                Ok(())
            }
        }
    }

    fn step(
        &self,
        live: &mut Live,
        passes: &mut Passes<'_>,
        loaded: &Loaded,
    ) -> Result<(), BoxError> {
        let joined = live.joined();
        let Some((_, decoding)) = live.decoding.as_mut().filter(|_| joined > 0) else {
            return Ok(());
        };
        let begun = Instant::now();
        let last: Vec<u32> = live.sequences[..joined].iter().map(Sequence::last).collect();
        let logits = decoding
            .step(passes, &last, loaded.least(joined, 1, &self.shape).rows)
            .map_err(device_error)?;
        live.step_took = begun.elapsed();
        self.metrics.batch("decode", joined, live.step_took);
        self.accept(live, 0, &logits);
        Ok(())
    }

    /// Gives each sequence from `first` on its token; those that end leave.
    fn accept(&self, live: &mut Live, first: usize, logits: &Rows) {
        let count = logits.numbers.len() / logits.cols.max(1);
        live.ended_last = 0;
        let mut generated = 0;
        // From the last one on: who leaves gives its place to one that had its turn.
        for row in (0..count).rev() {
            let sequence = &mut live.sequences[first + row];
            let before = sequence.generated();
            let fate = sequence.accept(logits.row(row), &self.ends);
            if sequence.generated() > before {
                generated += 1;
                if before == 0 {
                    self.metrics.first_token(sequence.accepted.elapsed());
                }
            }
            match fate {
                Fate::GoesOn => {}
                Fate::Ended(ending) => {
                    live.ended_last += 1;
                    let ended = live.take_out(first + row);
                    self.metrics.finished();
                    ended.end(ending);
                }
                Fate::NotFinite => {
                    let failed = live.take_out(first + row);
                    self.metrics.failed();
                    failed.fail(EngineError::NotFinite);
                }
            }
        }
        self.metrics.generated_tokens(generated);
    }
}

/// Whether those that wait join now. A pass over one prompt, and a cache that is made anew for it, cost
/// almost as much as for a few, so while many are decoded a few that wait are gathered, for a moment.
fn should_join(live: &Live) -> bool {
    let joined = live.joined();
    let Some(first) = live.sequences.get(joined) else { return false };
    let waiting = live.sequences.len() - joined;
    let longest = (GATHERING_STEPS * live.step_took).min(LONGEST_GATHERING);
    waiting * 4 >= joined || first.accepted.elapsed() >= longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_join_together_unless_those_that_are_decoded_would_wait_long() {
        let mut live = Live::default();
        assert_eq!(live.how_many_join(64, 16, 8192), 64);
        assert_eq!(live.how_many_join(64, 512, 8192), 16);
        assert_eq!(live.how_many_join(3, 10_000, 8192), 1);
        live.ran_prompts(1000, Duration::from_secs(1));
        assert_eq!(live.how_many_join(64, 16, 8192), 64, "nobody is decoded who could wait");
        assert!(live.prompt_rate > 999.0);
        live.ran_prompts(1000, Duration::from_secs(100));
        assert!(live.prompt_rate > 899.0, "one slow pass is not believed at once");
    }
}
