//! Decodes many sequences at once, where new ones join between two tokens.
//!
//! One thread decodes. In each turn:
//!
//! 1. sequences that were abandoned or are out of time leave;
//! 2. the tokens of prompts are rated, for those that ask for it, for a short time only;
//! 3. one pass runs the next tokens: on the CPU, where keys and values are in pages, those of prompts in parts beside the
//!    last token of each that is being decoded ([`schedule`](super::schedule)). Elsewhere sequences that wait join
//!    first, as far as there is room and for a short time only, by a pass over their prompts, and then one pass gives
//!    the next token of all that have joined.
//!
//! A pass is one guarded run that can be repeated ([`decode_pass`](super::decode_pass)); tokens
//! are chosen, kept and sent after it has returned. So a fault at any moment changes no answer:
//! the cache is made anew from the tokens, on whatever device the guard goes to. When memory runs
//! out, because the ladder splits the work or because the cache is full, fewer sequences run at
//! once and the others are parked until there is room again. When the ladder ends, each sequence
//! is tried alone, and only those that fail alone fail.
//!
//! Beside the last token of each sequence a pass over pages may run some that are proposed to come next
//! ([`speculate`](surefoot_models::generate::speculate)). Each is kept only if it is the token that is chosen by the logits
//! behind the one before it, as if it had not been proposed; those that are not are taken out of the pages again.
//!
//! A panic outside a pass is a defect of the program. It fails the sequences that are being decoded,
//! with [`EngineError::Panicked`], is written to the journal, and the thread goes on.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use surefoot::device::DeviceName;
use surefoot::fault::catch;
use surefoot_lanes::{BatchQueue, Next, Request};
use surefoot_models::ModelError;
use surefoot_models::generate::pages::{self, PagedCache};
use surefoot_models::generate::session::Decoding;
use surefoot_models::generate::speculate::{Candidate, MOST_ROWS, Speculator};
use surefoot_models::runner::Runner;

use super::activity_log::ActivityLog;
use super::bucket;
use super::capacity::EngineCapacity;
use super::decode_pass::{Answered, CacheSlot, Pass, PassResult, PassRunner};
use super::error::EngineError;
use super::generation::{Generation, GenerationStream};
use super::live::{LONGEST_JOINING, LiveSequences};
use super::pass_budget::PassBudget;
use super::schedule::Share;
use super::sequence::Sequence;
use super::submit::submit_all;
use crate::metrics::{Levels, Metrics};

/// How long those who ask again as soon as they are answered are waited for: sequences that began
/// together end together.
const GATHER: Duration = Duration::from_millis(2);

/// How long the cache of a device is kept when nothing is decoded any more: a request that comes soon needs none made anew, and goes on with
/// steps that were recorded.
const KEPT: Duration = Duration::from_secs(5);

/// How often it is told how full the cache is.
const TELL_LEVELS: Duration = Duration::from_millis(50);

/// Tokens of the long prompt that is warmed up with: devices run such prompts by other kernels than short ones.
const LONG_PROMPT: usize = 130;

/// Tokens that are decoded behind each prompt to warm up: with these many devices record a step, which takes what single steps do not.
const WARM_UP_STEPS: usize = 4;

/// Decodes sequences.
pub struct Decoder {
    queue: BatchQueue<(), Sequence>,
    pub(super) runner: Arc<Runner>,
    pub(super) ends: Vec<u32>,
    pub(super) capacity: EngineCapacity,
    pub(super) budget: Arc<PassBudget>,
    pub(super) metrics: Arc<Metrics>,
    activity: Arc<ActivityLog>,
    /// What proposes tokens, until the thread takes it.
    speculator: Mutex<Speculator>,
}

impl Decoder {
    pub(crate) fn new(
        runner: Arc<Runner>,
        ends: Vec<u32>,
        capacity: EngineCapacity,
        budget: Arc<PassBudget>,
        metrics: Arc<Metrics>,
        activity: Arc<ActivityLog>,
    ) -> Self {
        let queue = BatchQueue::new(capacity.queue);
        let speculator = Mutex::default();
        Self { queue, runner, ends, capacity, budget, metrics, activity, speculator }
    }

    /// Proposes tokens by `speculator`.
    #[must_use]
    pub(crate) fn speculating(self, speculator: Speculator) -> Self {
        Self { speculator: Mutex::new(speculator), ..self }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Decodes a few tokens of `count` short sequences; of a single one also behind a long prompt. Prompts are of several tokens, since a pass over
    /// single ones is a step, and of different lengths, as those of requests are.
    pub(crate) fn warm_up(&self, count: usize) -> Result<(), EngineError> {
        let width = bucket::width(1).min(self.capacity.context);
        let at_once = (self.capacity.pass_tokens / width).max(1);
        let prompts: Vec<Vec<u32>> =
            (0..count).map(|number| vec![0; (2 + number % 2).min(width - 1).max(1)]).collect();
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        // A small cache never holds so many.
        if count > 1 && !self.capacity.limits().fit(count, longest + WARM_UP_STEPS) {
            return Ok(());
        }
        self.warm_up_with(&prompts, at_once, width)?;
        if count == 1 && self.capacity.context > LONG_PROMPT {
            let width = bucket::width(LONG_PROMPT).min(self.capacity.context);
            self.warm_up_with(&[vec![0; LONG_PROMPT]], 1, width)?;
        }
        Ok(())
    }

    /// Decodes a few tokens behind prompts, `at_once` of which join in a pass that is as wide as `width`.
    fn warm_up_with(
        &self,
        prompts: &[Vec<u32>],
        at_once: usize,
        width: usize,
    ) -> Result<(), EngineError> {
        self.runner.run(&self.capacity.request("warm up"), |attempt| {
            let mut decoding = Decoding::new(attempt.model(), self.capacity.limits());
            let mut passes = attempt.model().passes();
            for joining in prompts.chunks(at_once) {
                let least = self.capacity.least_pass(attempt, joining.len(), width);
                decoding.join(&mut passes, joining, least)?;
            }
            let count = prompts.len();
            let rows = self.capacity.least_pass(attempt, count, 1).rows;
            let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
            let room = self.capacity.context.saturating_sub(longest);
            for _ in 0..WARM_UP_STEPS.min(room).max(1) {
                decoding.step(&mut passes, &vec![0; count], rows)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Queues all or none.
    pub(crate) fn submit(
        &self,
        generations: Vec<Generation>,
        deadline: Option<Instant>,
    ) -> Result<Vec<GenerationStream>, EngineError> {
        let mut items = Vec::with_capacity(generations.len());
        let mut streams = Vec::with_capacity(generations.len());
        for generation in generations {
            let (sequence, stream) = Sequence::new(generation, deadline, Arc::clone(&self.metrics));
            items.push(((), sequence));
            streams.push(stream);
        }
        let queued =
            submit_all(&self.queue, items, deadline, Sequence::is_abandoned, &self.metrics);
        match queued {
            Ok(()) => Ok(streams),
            Err(refused) => {
                drop(streams);
                drop(refused.items);
                Err(refused.error)
            }
        }
    }

    /// Decodes until the queue is closed and all that was accepted is done.
    pub(crate) fn work(&self) {
        let mut room = self.capacity.sequences;
        let speculator =
            std::mem::take(&mut *self.speculator.lock().unwrap_or_else(PoisonError::into_inner));
        let mut live = LiveSequences::speculating(speculator);
        let blueprint = self.runner.blueprint();
        let limits = self.capacity.page_limits(blueprint);
        let mut slot = CacheSlot::new(PagedCache::new(pages::layout(blueprint), limits));
        loop {
            let next = match slot.has_cache() {
                true => self.queue.next_batch_before(room, GATHER, Instant::now() + KEPT),
                false => Some(self.queue.next_batch(room, GATHER)),
            };
            let Some(next) = next else {
                // With nothing to decode the cache only takes memory.
                slot.clear();
                continue;
            };
            match next {
                Next::Closed => return,
                Next::Expired(requests) => self.expire(requests),
                Next::Batch(mut batch) => {
                    let decoded = catch(|| {
                        self.metrics.queued("decode", batch.requests.iter().map(Request::arrived));
                        let items = batch.requests.drain(..).map(|request| request.item);
                        live.admit(items);
                        while !live.is_empty() {
                            room = self.turn(&mut live, &mut slot, room);
                            self.activity.report_if_due();
                        }
                    });
                    if let Err(panic) = decoded {
                        // Guarded passes catch their own panics: this one is a defect of the
                        // program. The sequences answer for themselves when they are dropped.
                        let speculator = std::mem::take(&mut live.speculator);
                        live = LiveSequences::speculating(speculator);
                        slot.forget();
                        self.activity.panicked("decode", &panic);
                    }
                    slot.rest();
                    self.tell_levels(&live, &slot);
                    batch.end(live.ended_last.saturating_sub(self.queue.len()));
                }
            }
        }
    }

    fn expire(&self, requests: Vec<Request<Sequence>>) {
        let now = Instant::now();
        for request in requests {
            request.item.expire(now);
        }
    }

    /// Lets sequences leave and join, and gives the others a token. At most `room` sequences run
    /// at once; returns how many may from now on.
    fn turn(&self, live: &mut LiveSequences, slot: &mut CacheSlot, mut room: usize) -> usize {
        self.let_go(live, slot);
        self.admit(live, room);
        let limits = self.capacity.limits();
        let until = Instant::now() + LONGEST_JOINING;
        while let Some(sequence) = live.unrated.pop_front() {
            live.admit(self.rate_prompt(sequence));
            if Instant::now() >= until {
                break;
            }
        }
        if self.runner.device() == Some(DeviceName::CPU) {
            return self.run_tokens(live, slot, room);
        }
        // Those that are left after a while wait for the next turn, so that nobody waits long for
        // a token.
        loop {
            let pass = Pass::Join(live.next_to_join(&limits));
            if pass == Pass::Join(0) {
                break;
            }
            room = self.run(live, slot, pass, room);
            if Instant::now() >= until {
                break;
            }
            self.admit(live, room);
        }
        live.park_for_a_step(&limits, slot);
        if live.joined > 0 {
            room = self.run(live, slot, Pass::Step, room);
        }
        room
    }

    /// Runs the next tokens of sequences whose keys and values are in pages.
    fn run_tokens(&self, live: &mut LiveSequences, slot: &mut CacheSlot, room: usize) -> usize {
        if live.joined > 0 {
            // They were decoded on another device.
            live.joined = 0;
            slot.forget();
        }
        if slot.has_cache() {
            // That of another device is of no more use.
            slot.clear();
        }
        let scheduled = live.schedule(&mut slot.pages, self.capacity.pass_tokens);
        self.metrics.preempted(scheduled.preempted);
        for known in scheduled.started {
            self.metrics.started(known);
        }
        if live.levels_told.is_none_or(|told| told.elapsed() >= TELL_LEVELS) {
            live.levels_told = Some(Instant::now());
            self.tell_levels(live, slot);
        }
        let mut shares = scheduled.shares;
        if shares.is_empty() {
            return room;
        }
        self.propose(live, &mut shares);
        self.run(live, slot, Pass::Tokens(shares), room)
    }

    /// Adds tokens that are worth checking to a pass that decodes. One that runs prompts, or with an adapter,
    /// has none: there a row does not have the same bits in every pass.
    fn propose(&self, live: &mut LiveSequences, shares: &mut [Share]) {
        let LiveSequences { sequences, speculator, .. } = live;
        let plain = |share: &Share| !share.is_prompt && sequences[share.at].adapter().is_none();
        if !speculator.is_on() || shares.len() >= MOST_ROWS || !shares.iter().all(plain) {
            return;
        }
        let candidate = |share: &Share| {
            let sequence = &sequences[share.at];
            let tokens = sequence.tokens();
            let most = sequence.room().min(self.capacity.context.saturating_sub(tokens.len()));
            Candidate { key: sequence.key, tokens, most: most.saturating_sub(1) }
        };
        let candidates: Vec<Candidate<'_>> = shares.iter().map(candidate).collect();
        let proposals = speculator.propose(&candidates);
        for (share, proposed) in shares.iter_mut().zip(proposals) {
            share.proposed = proposed;
        }
    }

    fn tell_levels(&self, live: &LiveSequences, slot: &CacheSlot) {
        let has_none = |sequence: &&Sequence| slot.pages.filled(sequence.key).is_none();
        let without_pages = live.sequences.iter().filter(has_none).count();
        let waiting = self.queue.len() + live.parked.len() + without_pages;
        self.metrics.level(Levels { pages: Some(slot.pages.counts()), waiting });
    }

    /// Takes out who was abandoned or is out of time.
    fn let_go(&self, live: &mut LiveSequences, slot: &mut CacheSlot) {
        let now = Instant::now();
        for sequence in live.take_gone(now, slot) {
            if sequence.has_enough() {
                self.metrics.finished();
            } else if sequence.is_abandoned() {
                self.metrics.cancelled();
            } else {
                sequence.expire(now);
            }
        }
    }

    /// Lets those in who waited longest: the parked ones were in already.
    fn admit(&self, live: &mut LiveSequences, room: usize) {
        while live.running() < room {
            let Some(parked) = live.parked.pop_front() else { break };
            live.sequences.push(parked);
        }
        // Those that nobody waits for any more make room for others in the queue.
        for _ in self.queue.take_if(Sequence::is_abandoned) {
            self.metrics.cancelled();
        }
        let expired = self.queue.take_expired();
        if !expired.is_empty() {
            self.expire(expired);
        }
        if live.running() < room && !self.queue.is_empty() {
            let joining = self.queue.join(&(), room - live.running());
            self.metrics.queued("decode", joining.iter().map(Request::arrived));
            live.admit(joining.into_iter().map(|request| request.item));
        }
    }

    /// Computes a pass and takes its result over; if it fails for good, finds out for which
    /// sequences. Returns how many may run at once.
    fn run(
        &self,
        live: &mut LiveSequences,
        slot: &mut CacheSlot,
        pass: Pass,
        room: usize,
    ) -> usize {
        let begun = Instant::now();
        let tokens = tokens_of(&pass, live, slot);
        match self.guarded(&live.sequences, live.joined, &pass, slot) {
            Ok(result) => {
                let (room, took) = (result.room, begun.elapsed());
                if let Pass::Tokens(shares) = &pass {
                    let runs_prompts = shares.iter().any(|share| share.is_prompt);
                    live.times.passed(tokens, runs_prompts, took);
                    if !runs_prompts {
                        let rows = result.answered.iter().map(Answered::rows).sum();
                        live.speculator.passed(rows, took);
                    }
                }
                self.commit(live, slot, &pass, result, took);
                room
            }
            Err(_) => {
                slot.forget();
                self.try_each_alone(live, slot, &pass);
                room
            }
        }
    }

    fn guarded(
        &self,
        sequences: &[Sequence],
        joined: usize,
        pass: &Pass,
        slot: &mut CacheSlot,
    ) -> Result<PassResult, ModelError> {
        let passes = PassRunner { capacity: &self.capacity, budget: &self.budget };
        let slot = RefCell::new(slot);
        let request = self.capacity.request("decode").samples(self.capacity.sequences);
        let outcome = self.runner.run(&request, |attempt| {
            passes.attempt(attempt, sequences, joined, pass, &mut slot.borrow_mut())
        });
        outcome.map(|outcome| outcome.value)
    }

    /// Runs each sequence of a pass that failed alone, and fails those that fail alone. Those that had their turn keep
    /// their pages as long as there is room for those that have it next.
    pub(super) fn try_each_alone(
        &self,
        live: &mut LiveSequences,
        slot: &mut CacheSlot,
        pass: &Pass,
    ) {
        let joined = live.joined;
        let is_suspect = |at: usize| match pass {
            Pass::Tokens(shares) => shares.iter().any(|share| share.at == at),
            Pass::Step => at < joined,
            Pass::Join(count) => at < joined + count,
        };
        let (mut suspects, mut rest) = (Vec::new(), Vec::new());
        for (at, sequence) in std::mem::take(&mut live.sequences).into_iter().enumerate() {
            if is_suspect(at) { suspects.push(sequence) } else { rest.push(sequence) }
        }
        live.joined = 0;
        for suspect in suspects {
            self.metrics.preempted(live.make_room_for(&suspect, &mut slot.pages));
            let mut alone = LiveSequences::default();
            let pass = match pass {
                Pass::Tokens(_) => Pass::Tokens(vec![Share {
                    at: 0,
                    upto: suspect.tokens().len(),
                    is_whole: true,
                    is_prompt: true,
                    proposed: Vec::new(),
                }]),
                _ => Pass::Join(1),
            };
            alone.sequences.push(suspect);
            let begun = Instant::now();
            match self.guarded(&alone.sequences, 0, &pass, slot) {
                Ok(result) => {
                    self.commit(&mut alone, slot, &pass, result, begun.elapsed());
                    live.sequences.append(&mut alone.sequences);
                }
                Err(error) => {
                    let error = EngineError::from(error);
                    for sequence in alone.sequences {
                        sequence.fail(error.clone());
                    }
                }
            }
            slot.clear();
        }
        live.sequences.extend(rest);
    }
}

/// How many tokens a pass over pages runs; none for another.
fn tokens_of(pass: &Pass, live: &LiveSequences, slot: &CacheSlot) -> usize {
    let Pass::Tokens(shares) = pass else { return 0 };
    let of = |share: &Share| {
        let filled = slot.pages.filled(live.sequences[share.at].key).unwrap_or(0);
        share.upto + share.proposed.len() - filled
    };
    shares.iter().map(of).sum()
}
