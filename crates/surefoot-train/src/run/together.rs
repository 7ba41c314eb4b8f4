//! A run that several ranks do together: each rank runs the same loop, and this is where they meet.
//!
//! Every rank trains and tests on its share; the first one saves and reports. The shares come from the
//! same plan of an epoch, so a run can be resumed with another number of ranks. A rank
//! whose state is lost with its device is given that of another rank, since all are the same.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use surefoot::Fault;
use surefoot::fault::{catch, from_panic};
use surefoot::journal::{Event, EventKind};

use super::run_state::{RunState, StepsEnd};
use super::save::MOST_REWINDS;
use super::{Run, TrainError};
use crate::evaluate::{Evaluation, Tally, tally};
use crate::loader::Loaded;
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::ranks::{RankReport, Ranks, broadcast, exchange, share, unreadable};
use crate::report::{FaultReport, TrainEvent};
use crate::scale::LossScale;
use crate::stage::{Feed, Stage};
use crate::state::{Held, State};
use crate::step::OPERATION;
use crate::step::shared::{
    self, Failure, News, Share, SharedDone, SharedFailure, Status, agreed, failure,
};

/// How often, in steps, ranks say how they are; they also do at the end of an epoch and when one is stopped.
const STATUS_EVERY: u64 = 64;

/// What a rank found in its share of a test.
#[derive(Serialize, Deserialize)]
struct Tested {
    failure: Failure,
    step: u64,
    tally: Tally,
    news: News,
}

/// A state without its numbers, which are sent as bytes.
#[derive(Serialize, Deserialize)]
struct StateHeader {
    first: Vec<bool>,
    second: Vec<bool>,
    updates: u64,
    scale: LossScale,
    step: u64,
}

impl Run<'_> {
    /// Whether this process writes checkpoints.
    pub(super) fn is_first(&self) -> bool {
        self.ranks.is_none_or(|ranks| ranks.rank() == 0)
    }

    /// The part of each batch that this rank trains on.
    pub(super) fn own_part(&self, plan: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
        let Some(ranks) = self.ranks else { return plan };
        let own =
            |batch: Vec<usize>| batch[share(batch.len(), ranks.rank(), ranks.count())].to_vec();
        plan.into_iter().map(own).collect()
    }

    /// One step of all ranks.
    pub(super) fn step_together<M: Trainable>(
        &self,
        ranks: &dyn Ranks,
        run: &mut RunState<M>,
        shapes: &[Shape],
        (loaded, stage): (Loaded, &Stage),
        total: u64,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<StepsEnd, TrainError> {
        let order = self.step_order(run, total);
        let settings = self.settings(run.micro_batch);
        let stop = self.stop.load(Ordering::Relaxed);
        let own = Share {
            feed: match &loaded {
                Ok(batch) => Ok(Feed { batch, stage: Some(stage) }),
                Err(fault) => Err(fault.clone()),
            },
            stop,
            tells_status: stop
                || run.ranks.is_empty()
                || run.state.step.is_multiple_of(STATUS_EVERY),
            time: run.step_time,
        };
        let did = shared::step(ranks, self.footing, &settings, order, &run.state, shapes, own);
        let SharedDone { done, faults, items, stop, news, time } = match did {
            Ok(did) => did,
            Err(failed) => return self.restore_or_end(ranks, run, shapes, failed, tell),
        };
        run.step_time = time;
        run.note_faults(&faults, tell);
        self.note_ranks(ranks, run, news, tell);
        self.commit(run, done, items, total, tell)?;
        Ok(if stop { StepsEnd::Stopped } else { StepsEnd::Whole })
    }

    /// Takes over what happened to the ranks.
    fn note_ranks<M>(
        &self,
        ranks: &dyn Ranks,
        run: &mut RunState<M>,
        news: Vec<News>,
        tell: &mut dyn FnMut(&TrainEvent),
    ) {
        run.ranks.resize_with(ranks.count(), RankReport::default);
        for (rank, News { faults, unreadable, status }) in news.into_iter().enumerate() {
            run.note_unreadable(&unreadable, tell);
            let known = &mut run.ranks[rank];
            known.rank = rank;
            known.faults += faults.len();
            if let Some(Status { host, device, peak_memory, time }) = status {
                (known.host, known.device) = (host, device);
                known.peak_memory = known.peak_memory.max(peak_memory);
                known.computing_seconds = time.computing;
                known.agreeing_seconds = time.agreeing;
                known.summing_seconds = time.summing;
                known.updating_seconds = time.updating;
            }
            if rank != ranks.rank() {
                self.note_faults_of(rank, run, faults, tell);
            }
        }
    }

    /// Reports the faults of another rank; the journal of this one has only its own.
    fn note_faults_of<M>(
        &self,
        rank: usize,
        run: &mut RunState<M>,
        faults: Vec<FaultReport>,
        tell: &mut dyn FnMut(&TrainEvent),
    ) {
        for fault in faults {
            let fault = FaultReport { rank: Some(rank), ..fault };
            self.footing.journal().record(
                Event::new(EventKind::Fault, OPERATION)
                    .device(fault.device.clone())
                    .context("rank", rank)
                    .context("kind", fault.kind.clone())
                    .context("message", fault.message.clone())
                    .context("recovery", fault.recovery.clone().unwrap_or_default())
                    .context("step", fault.step),
            );
            tell(&TrainEvent::Fault(fault.clone()));
            run.faults.push(fault);
        }
    }

    /// Gives ranks that lost their state that of another; ends the run on all ranks if more is lost.
    fn restore_or_end<M: Trainable>(
        &self,
        ranks: &dyn Ranks,
        run: &mut RunState<M>,
        shapes: &[Shape],
        failed: SharedFailure,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<StepsEnd, TrainError> {
        let step = run.state.step;
        let times = if run.rewound.0 == step { run.rewound.1 + 1 } else { 1 };
        run.rewound = (step, times);
        match failed.donor.filter(|_| times <= MOST_REWINDS) {
            None => {
                run.note_failure(&failed.fault, tell);
                Err(self.end_together(ranks, run, shapes, failed))
            }
            Some(from) => {
                self.restore(ranks, run, from)?;
                run.note_faults(&failed.fault.earlier, tell);
                let fault = FaultReport {
                    recovery: Some(format!("restored from rank {from}")),
                    rank: Some(failed.rank),
                    ..FaultReport::of(&failed.fault, step + 1)
                };
                tell(&TrainEvent::Fault(fault.clone()));
                run.faults.push(fault);
                tell(&TrainEvent::Restored { from });
                Ok(StepsEnd::Rewound)
            }
        }
    }

    /// Sends the state of the rank `from` to all others, which take it over.
    fn restore<M: Trainable>(
        &self,
        ranks: &dyn Ranks,
        run: &mut RunState<M>,
        from: usize,
    ) -> Result<(), TrainError> {
        let step = run.state.step;
        let stopped = |fault: Fault| self.stopped(fault, step, None);
        let (mut header, mut numbers) = (Vec::new(), Vec::new());
        if ranks.rank() == from {
            let held = run.state.hold().map_err(stopped)?;
            header = serde_json::to_vec(&StateHeader::of(&held))
                .map_err(|error| stopped(unreadable(&error)))?;
            numbers = bytes_of(&held);
        }
        let header = broadcast(ranks, from, &header).map_err(stopped)?;
        let numbers = broadcast(ranks, from, &numbers).map_err(stopped)?;
        if ranks.rank() == from {
            return Ok(());
        }
        let header: StateHeader =
            serde_json::from_slice(&header).map_err(|error| stopped(unreadable(&error)))?;
        // What was on a lost device can't be moved; on the host is a copy without it.
        let copy = run.held.as_ref().map(|copy| copy.model.valid());
        let model = copy.unwrap_or_else(|| run.state.model.valid());
        let shapes = parameters::shapes(&model);
        let held = header.with_numbers(&numbers, &shapes);
        let device = self.footing.device().map_err(stopped)?;
        let state = catch(|| State::from_held(held, model, device.name(), device.burn()));
        run.state = state.map_err(|record| stopped(from_panic("restore", &record)))?;
        Ok(())
    }

    /// Ends the run on all ranks: the first one saves what was done, while the others wait.
    fn end_together<M: Trainable>(
        &self,
        ranks: &dyn Ranks,
        run: &mut RunState<M>,
        shapes: &[Shape],
        SharedFailure { rank, fault, .. }: SharedFailure,
    ) -> TrainError {
        let error = match self.is_first() {
            true => self.save_and_stop(run, shapes, *fault),
            false => TrainError::OtherRank { rank, why: fault.root_cause().to_owned() },
        };
        // The connection may be what failed: then there is nothing to wait for.
        let _ = ranks.gather(&[]);
        error
    }

    /// Tests each rank's share of the test samples and adds up the results; none if a rank's state was
    /// lost and restored, after which the test has to be repeated.
    pub(super) fn test_together<M: Trainable>(
        &self,
        ranks: &dyn Ranks,
        run: &mut RunState<M>,
        shapes: &[Shape],
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<Option<Evaluation>, TrainError> {
        let (size, loading) = (run.micro_batch, run.loading);
        let samples = share(self.data.test.len(), ranks.rank(), ranks.count());
        let own = tally(self.footing, &run.state, &self.recipe(false), samples, size, loading);
        let step = run.state.step;
        let stopped = |fault: Fault| self.stopped(fault, step, None);
        let told = |faults: &[Fault]| {
            faults.iter().map(|fault| FaultReport::of(fault, step + 1)).collect()
        };
        let message = Tested {
            failure: failure(&own),
            step,
            tally: own.as_ref().map_or_else(|_| Tally::default(), |(tally, _)| tally.clone()),
            news: News {
                faults: own.as_ref().map_or_else(|_| Vec::new(), |(_, faults)| told(faults)),
                unreadable: Vec::new(),
                status: Some(shared::status(ranks, self.footing, &run.state, run.step_time)),
            },
        };
        let all = exchange(ranks, &message).map_err(stopped)?;
        let agree = agreed(ranks, all.iter().map(|tested| (&tested.failure, tested.step)), &own);
        if let Err(failed) = agree {
            return self.restore_or_end(ranks, run, shapes, failed, tell).map(|_| None);
        }
        let (mut whole, mut news) = (Tally::default(), Vec::new());
        for tested in all {
            whole.add(tested.tally);
            news.push(tested.news);
        }
        self.note_ranks(ranks, run, news, tell);
        let (_, faults) = own.map_err(stopped)?;
        run.note_faults(&faults, tell);
        whole.evaluation(Vec::new()).map(Some).map_err(stopped)
    }
}

impl StateHeader {
    fn of(held: &Held) -> Self {
        let present = |moments: &[Option<Vec<f32>>]| moments.iter().map(Option::is_some).collect();
        Self {
            first: present(&held.first),
            second: present(&held.second),
            updates: held.updates,
            scale: held.scale,
            step: held.step,
        }
    }

    /// The state that these numbers, in the order of [`bytes_of`], belong to.
    fn with_numbers(self, bytes: &[u8], shapes: &[Shape]) -> Held {
        let mut rest = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut next = |shape: &Shape| -> Vec<f32> {
            rest.by_ref().take(shape.dims.iter().product()).collect()
        };
        let values = shapes.iter().map(&mut next).collect();
        let mut moments = |present: Vec<bool>| {
            let both = present.into_iter().zip(shapes);
            both.map(|(present, shape)| present.then(|| next(shape))).collect()
        };
        Held {
            values,
            first: moments(self.first),
            second: moments(self.second),
            updates: self.updates,
            scale: self.scale,
            step: self.step,
        }
    }
}

fn bytes_of(held: &Held) -> Vec<u8> {
    let moments = held.first.iter().chain(&held.second).flatten();
    let numbers = held.values.iter().chain(moments).flatten();
    numbers.flat_map(|number| number.to_le_bytes()).collect()
}
