//! Incidents: faults with what preceded each, which rungs were tried, how each ended.
//!
//! An incident belongs to one piece of work: the operation, process and thread of its first fault.
//! States: open → recovered (the work's `step` came without a fault, after a rung) or given up
//! (the `step` carries the fault, or came without any rung, so it was another attempt). An incident
//! that the journal never ends stays open.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use serde::Serialize;

use super::{Event, EventKind, FaultNote};

/// How many events before a fault are shown with it.
const BEFORE: usize = 5;
/// Bounds on what a damaged or hostile file can make us keep.
const MAX_DEVICES: usize = 256;
const MAX_OPEN: usize = 1024;
const MAX_INCIDENTS: usize = 200;
const MAX_RUNGS: usize = 32;

/// How a fault's incident ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IncidentEnd {
    /// The work succeeded after all.
    Recovered,
    /// The work failed.
    GivenUp,
    /// The journal doesn't say.
    Open,
}

/// One fault from its cause to its end.
#[derive(Clone, Debug, Serialize)]
pub struct Incident {
    /// The work that failed.
    pub op: String,
    /// Where it failed first.
    pub device: Option<String>,
    /// When it failed first: µs since 1970.
    pub time_us: u64,
    /// Its process.
    pub pid: u32,
    /// Its thread.
    pub thread: u32,
    /// The first fault.
    pub cause: FaultNote,
    /// The latest events on the same device before it, oldest first.
    pub before: Vec<Event>,
    /// The rungs that were tried, in order; the first 32.
    pub rungs: Vec<RungTried>,
    /// How it ended.
    pub outcome: IncidentEnd,
    /// The rung that led to success.
    pub recovered_by: Option<String>,
    /// How long it took from the first fault to the end.
    pub took_us: Option<u64>,
}

/// One rung that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct RungTried {
    /// Its name.
    pub name: String,
    /// The device it was tried on.
    pub device: Option<String>,
    /// The fault that followed it, if it didn't help.
    pub then: Option<FaultNote>,
}

/// How many incidents ended which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IncidentCounts {
    /// The work succeeded after all.
    pub recovered: u64,
    /// The work failed.
    pub given_up: u64,
    /// The journal doesn't say.
    pub open: u64,
}

impl IncidentCounts {
    /// The share of faulted work that succeeded, if any faulted.
    pub fn recovery_rate(&self) -> Option<f64> {
        let all = self.recovered + self.given_up + self.open;
        (all > 0).then(|| self.recovered as f64 / all as f64)
    }
}

type Work = (u32, u32, String);

/// Follows a journal's events and finds the incidents in it.
#[derive(Debug, Default)]
pub(super) struct Incidents {
    open: HashMap<Work, Incident>,
    ended: Vec<Incident>,
    outcomes: IncidentCounts,
    latest: VecDeque<Rc<Event>>,
    latest_on: HashMap<String, VecDeque<Rc<Event>>>,
}

impl Incidents {
    /// Takes the next event. Returns the fault if this is a new one, not a mention of one that
    /// was counted before.
    pub(super) fn add(&mut self, event: &Rc<Event>) -> Option<FaultNote> {
        let work = (event.pid, event.thread, event.op.to_string());
        let is_open = self.open.contains_key(&work);
        let new_fault = match event.kind {
            EventKind::Rung => None,
            EventKind::Step if is_open => None,
            _ => event.fault.clone(),
        };
        if let Some(fault) = &new_fault {
            self.fail(&work, event, fault);
        }
        match event.kind {
            EventKind::Rung => self.try_rung(&work, event),
            EventKind::Step => self.end(&work, event),
            _ => {}
        }
        self.remember(event);
        new_fault
    }

    /// Every incident that was kept, in the order of their first faults, and how all of them ended.
    pub(super) fn finish(mut self) -> (Vec<Incident>, IncidentCounts) {
        for (_, incident) in std::mem::take(&mut self.open) {
            self.close(incident);
        }
        self.ended.sort_by_key(|incident| (incident.time_us, incident.pid, incident.thread));
        (self.ended, self.outcomes)
    }

    fn fail(&mut self, work: &Work, event: &Event, fault: &FaultNote) {
        if let Some(incident) = self.open.get_mut(work) {
            if let Some(rung) = incident.rungs.last_mut() {
                rung.then = Some(fault.clone());
            }
            return;
        }
        if self.open.len() == MAX_OPEN {
            let oldest = self.open.iter().min_by_key(|(_, incident)| incident.time_us);
            if let Some(oldest) = oldest.map(|(work, _)| work.clone())
                && let Some(incident) = self.open.remove(&oldest)
            {
                self.close(incident);
            }
        }
        let before = match &event.device {
            Some(device) => self.latest_on.get(&**device),
            None => Some(&self.latest),
        };
        let incident = Incident {
            op: work.2.clone(),
            device: event.device.as_deref().map(str::to_owned),
            time_us: event.time_us,
            pid: event.pid,
            thread: event.thread,
            cause: fault.clone(),
            before: before.into_iter().flatten().map(|event| Event::clone(event)).collect(),
            rungs: Vec::new(),
            outcome: IncidentEnd::Open,
            recovered_by: None,
            took_us: None,
        };
        self.open.insert(work.clone(), incident);
    }

    fn try_rung(&mut self, work: &Work, event: &Event) {
        if let Some(incident) = self.open.get_mut(work)
            && incident.rungs.len() < MAX_RUNGS
        {
            incident.rungs.push(RungTried {
                name: event.recovery.as_deref().unwrap_or("unnamed").to_owned(),
                device: event.device.as_deref().map(str::to_owned),
                then: None,
            });
        }
    }

    fn end(&mut self, work: &Work, event: &Event) {
        let Some(mut incident) = self.open.remove(work) else { return };
        let rung = event.recovery.as_deref().map(str::to_owned);
        let rung = rung.or_else(|| incident.rungs.last().map(|rung| rung.name.clone()));
        incident.outcome = match (&event.fault, &rung) {
            (None, Some(_)) => IncidentEnd::Recovered,
            _ => IncidentEnd::GivenUp,
        };
        if incident.outcome == IncidentEnd::Recovered {
            incident.recovered_by = rung;
        }
        incident.took_us = Some(event.time_us.saturating_sub(incident.time_us));
        self.close(incident);
    }

    fn close(&mut self, incident: Incident) {
        match incident.outcome {
            IncidentEnd::Recovered => self.outcomes.recovered += 1,
            IncidentEnd::GivenUp => self.outcomes.given_up += 1,
            IncidentEnd::Open => self.outcomes.open += 1,
        }
        if self.ended.len() < MAX_INCIDENTS {
            self.ended.push(incident);
        }
    }

    fn remember(&mut self, event: &Rc<Event>) {
        push_bounded(&mut self.latest, event);
        let Some(device) = event.device.as_deref() else { return };
        if let Some(latest) = self.latest_on.get_mut(device) {
            push_bounded(latest, event);
        } else if self.latest_on.len() < MAX_DEVICES {
            push_bounded(self.latest_on.entry(device.to_owned()).or_default(), event);
        }
    }
}

fn push_bounded(latest: &mut VecDeque<Rc<Event>>, event: &Rc<Event>) {
    if latest.len() == BEFORE {
        latest.pop_front();
    }
    latest.push_back(Rc::clone(event));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind::{self, DeviceLost, OutOfMemory};

    fn event(kind: EventKind) -> Event {
        Event::new(kind, "forward").device("gpu")
    }

    fn fault(kind: FaultKind) -> Event {
        event(EventKind::Fault).fault(kind, "it broke")
    }

    fn rung(name: &'static str) -> Event {
        event(EventKind::Rung).recovery(name)
    }

    fn incidents_of(
        events: impl IntoIterator<Item = Event>,
    ) -> (Vec<Incident>, IncidentCounts, usize) {
        let mut incidents = Incidents::default();
        let mut faults = 0;
        for (time, mut event) in events.into_iter().enumerate() {
            event.time_us = time as u64;
            faults += usize::from(incidents.add(&Rc::new(event)).is_some());
        }
        let (incidents, outcomes) = incidents.finish();
        (incidents, outcomes, faults)
    }

    #[test]
    fn a_recovered_incident_names_cause_rungs_and_what_helped() {
        let (incidents, outcomes, faults) = incidents_of([
            fault(OutOfMemory),
            rung("reclaim"),
            fault(DeviceLost),
            rung("next device").device("cpu"),
            event(EventKind::Step).device("cpu"),
        ]);
        let [incident] = &incidents[..] else { panic!("{incidents:?}") };
        assert_eq!(incident.cause.kind, OutOfMemory);
        assert_eq!(incident.outcome, IncidentEnd::Recovered);
        assert_eq!(incident.recovered_by.as_deref(), Some("next device"));
        assert_eq!(incident.took_us, Some(4));
        assert_eq!(incident.rungs[0].then.as_ref().unwrap().kind, DeviceLost);
        assert_eq!(incident.rungs[1].device.as_deref(), Some("cpu"));
        assert_eq!((outcomes.recovered, outcomes.recovery_rate(), faults), (1, Some(1.0), 2));
    }

    #[test]
    fn a_step_with_a_fault_gives_up_and_is_not_a_second_fault() {
        let last = event(EventKind::Step).fault(OutOfMemory, "still");
        let (incidents, outcomes, faults) = incidents_of([fault(OutOfMemory), rung("split"), last]);
        assert_eq!(incidents[0].outcome, IncidentEnd::GivenUp);
        assert_eq!((outcomes.given_up, outcomes.recovery_rate(), faults), (1, Some(0.0), 1));
    }

    #[test]
    fn a_failed_step_alone_is_a_whole_incident() {
        let (incidents, outcomes, faults) =
            incidents_of([event(EventKind::Step).fault(FaultKind::ShapeMismatch, "2 and 3")]);
        assert_eq!(incidents[0].outcome, IncidentEnd::GivenUp);
        assert_eq!((outcomes.given_up, faults), (1, 1));
    }

    #[test]
    fn success_without_a_rung_is_another_attempt_and_no_recovery() {
        let (incidents, outcomes, _) = incidents_of([fault(OutOfMemory), event(EventKind::Step)]);
        assert_eq!(incidents[0].outcome, IncidentEnd::GivenUp);
        assert_eq!(outcomes.recovered, 0);
    }

    #[test]
    fn other_threads_and_operations_do_not_end_a_incident() {
        let mut elsewhere = event(EventKind::Step).recovery("split");
        elsewhere.thread = 9;
        let mut backward = event(EventKind::Step).recovery("split");
        backward.op = "backward".into();
        let (incidents, outcomes, _) = incidents_of([fault(OutOfMemory), elsewhere, backward]);
        assert_eq!(incidents[0].outcome, IncidentEnd::Open);
        assert_eq!(outcomes.open, 1);
    }

    #[test]
    fn what_preceded_is_the_latest_on_the_same_device() {
        let step = |op: String, device| Event::new(EventKind::Step, op).device(device);
        let mut events: Vec<_> = (0..9).map(|n| step(format!("gpu {n}"), "gpu")).collect();
        events.extend((0..9).map(|n| step(format!("cpu {n}"), "cpu")));
        events.push(fault(OutOfMemory));
        let (incidents, ..) = incidents_of(events);
        let before: Vec<_> = incidents[0].before.iter().map(|event| &*event.op).collect();
        assert_eq!(before, ["gpu 4", "gpu 5", "gpu 6", "gpu 7", "gpu 8"]);
    }

    #[test]
    fn endless_faults_are_counted_in_bounded_memory() {
        let (incidents, outcomes, faults) = incidents_of(
            (0..5_000)
                .map(|n| Event::new(EventKind::Fault, n.to_string()).fault(OutOfMemory, "again")),
        );
        assert_eq!((incidents.len(), outcomes.open, faults), (MAX_INCIDENTS, 5_000, 5_000));
    }
}
