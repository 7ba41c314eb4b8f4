//! A journal in numbers and incidents, from a stream of its lines in bounded memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;

use super::durations::{Durations, Timing};
use super::incident::{Incident, IncidentCounts, Incidents};
use super::{Event, EventKind, Line};
use crate::fault::FaultKind;

/// Operations beyond this many different ones are counted together.
const MAX_OPERATIONS: usize = 2000;
const MAX_DEVICES: usize = 256;
const OTHERS: &str = "(others)";
/// Broken lines beyond this many are counted but not named.
const MAX_BROKEN: usize = 100;

/// What a journal comes to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// How many events there are.
    pub events: u64,
    /// How many times a process opened the file.
    pub runs: u64,
    /// The newest version of the schema that a header names.
    pub version: Option<u32>,
    /// When the first event was recorded: µs since 1970.
    pub first_us: Option<u64>,
    /// When the last one was.
    pub last_us: Option<u64>,
    /// Events of each kind.
    pub kinds: BTreeMap<EventKind, u64>,
    /// Events on each device.
    pub devices: BTreeMap<String, u64>,
    /// The operations, those that took longest in all first.
    pub operations: Vec<Operation>,
    /// Faults of each kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// How the incidents ended.
    pub outcomes: IncidentCounts,
    /// The share of faulted work that succeeded after all.
    pub recovery_rate: Option<f64>,
    /// The incidents of the first 200 faults that ended, then of those that never did.
    #[serde(rename = "stories")]
    pub incidents: Vec<Incident>,
    /// How many lines within the file hold no event.
    pub broken: u64,
    /// The first 100 of those.
    pub broken_lines: Vec<BrokenLine>,
    /// The last line, if a process was killed while it wrote it.
    pub cut_off: Option<BrokenLine>,
}

/// One operation of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    /// Its name.
    pub op: String,
    /// Its kind.
    pub kind: EventKind,
    /// How often it happened.
    pub count: u64,
    /// The bytes of all of them together.
    pub bytes: u64,
    /// How long those took that say so.
    pub timing: Option<Timing>,
}

/// A line that holds no event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrokenLine {
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Takes a journal's lines and sums them up.
#[derive(Debug, Default)]
pub struct Summarizer {
    events: u64,
    runs: u64,
    version: Option<u32>,
    first_us: Option<u64>,
    last_us: Option<u64>,
    kinds: BTreeMap<EventKind, u64>,
    devices: BTreeMap<String, u64>,
    operations: BTreeMap<EventKind, BTreeMap<String, Tally>>,
    different_operations: usize,
    faults: BTreeMap<FaultKind, u64>,
    incidents: Incidents,
    broken: u64,
    broken_lines: Vec<BrokenLine>,
    cut_off: Option<BrokenLine>,
}

#[derive(Debug, Default)]
struct Tally {
    count: u64,
    bytes: u64,
    durations: Durations,
}

impl Summarizer {
    /// Takes the next line.
    pub fn add(&mut self, line: Line) {
        match line {
            Line::Event(event) => self.add_event(event),
            Line::Header(header) => {
                self.runs += 1;
                self.version = self.version.max(Some(header.version));
            }
            Line::Broken { number, why, cut_off: true } => {
                self.cut_off = Some(BrokenLine { line: number, why });
            }
            Line::Broken { number, why, .. } => {
                self.broken += 1;
                if self.broken_lines.len() < MAX_BROKEN {
                    self.broken_lines.push(BrokenLine { line: number, why });
                }
            }
        }
    }

    /// Whether anything so far was a journal's.
    pub fn has_found_any(&self) -> bool {
        self.events > 0 || self.runs > 0
    }

    /// How many broken lines there were so far.
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// The sum.
    pub fn finish(self) -> Summary {
        let (incidents, outcomes) = self.incidents.finish();
        let mut operations: Vec<_> = self
            .operations
            .into_iter()
            .flat_map(|(kind, operations)| {
                operations.into_iter().map(move |(op, tally)| Operation {
                    op,
                    kind,
                    count: tally.count,
                    bytes: tally.bytes,
                    timing: tally.durations.timing(),
                })
            })
            .collect();
        operations.sort_by_key(|operation| {
            let total = operation.timing.map_or(0, |timing| timing.total_ns);
            std::cmp::Reverse((total, operation.count))
        });
        Summary {
            events: self.events,
            runs: self.runs,
            version: self.version,
            first_us: self.first_us,
            last_us: self.last_us,
            kinds: self.kinds,
            devices: self.devices,
            operations,
            faults: self.faults,
            outcomes,
            recovery_rate: outcomes.recovery_rate(),
            incidents,
            broken: self.broken,
            broken_lines: self.broken_lines,
            cut_off: self.cut_off,
        }
    }

    fn add_event(&mut self, event: Event) {
        let event = Rc::new(event);
        self.events += 1;
        self.first_us = Some(self.first_us.map_or(event.time_us, |us| us.min(event.time_us)));
        self.last_us = self.last_us.max(Some(event.time_us));
        *self.kinds.entry(event.kind).or_default() += 1;
        if let Some(device) = event.device.as_deref() {
            let room = self.devices.len() < MAX_DEVICES;
            *entry(&mut self.devices, device, room) += 1;
        }
        let operations = self.operations.entry(event.kind).or_default();
        let known = operations.len();
        let tally = entry(operations, &event.op, self.different_operations < MAX_OPERATIONS);
        tally.count += 1;
        tally.bytes = tally.bytes.saturating_add(event.bytes.unwrap_or(0));
        if let Some(ns) = event.duration_ns() {
            tally.durations.add(ns);
        }
        self.different_operations += operations.len() - known;
        if let Some(fault) = self.incidents.add(&event) {
            *self.faults.entry(fault.kind).or_default() += 1;
        }
    }
}

/// The entry of a key; of all others together if there is no room for a new one.
fn entry<'a, V: Default>(map: &'a mut BTreeMap<String, V>, key: &str, room: bool) -> &'a mut V {
    let key = if room || map.contains_key(key) { key } else { OTHERS };
    map.entry(key.to_owned()).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Header;
    use std::time::Duration;

    fn sum(lines: impl IntoIterator<Item = Line>) -> Summary {
        let mut summarizer = Summarizer::default();
        lines.into_iter().for_each(|line| summarizer.add(line));
        summarizer.finish()
    }

    fn at(time_us: u64, mut event: Event) -> Line {
        event.time_us = time_us;
        Line::Event(event)
    }

    #[test]
    fn counts_times_and_bytes_are_per_operation_and_kind() {
        let step = |us| {
            Event::new(EventKind::Step, "forward").device("gpu").duration(Duration::from_micros(us))
        };
        let upload = Event::new(EventKind::Move, "upload").bytes(1 << 20);
        let found = sum([
            at(50, step(30)),
            at(10, step(10)),
            at(90, step(20)),
            at(20, upload.clone()),
            at(30, upload),
        ]);
        assert_eq!((found.events, found.first_us, found.last_us), (5, Some(10), Some(90)));
        assert_eq!(found.devices["gpu"], 3);
        assert_eq!(found.kinds[&EventKind::Move], 2);
        let [forward, upload] = &found.operations[..] else { panic!("{found:?}") };
        let timing = forward.timing.unwrap();
        assert_eq!((&*forward.op, forward.count, timing.median_ns), ("forward", 3, 20_000));
        assert_eq!((&*upload.op, upload.bytes, upload.timing), ("upload", 2 << 20, None));
    }

    #[test]
    fn faults_are_counted_by_kind_and_their_stories_told() {
        let fault = |kind| Event::new(EventKind::Fault, "forward").fault(kind, "");
        let found = sum([
            at(1, fault(FaultKind::OutOfMemory)),
            at(2, Event::new(EventKind::Rung, "forward").recovery("split")),
            at(3, Event::new(EventKind::Step, "forward")),
            at(4, fault(FaultKind::DeviceLost)),
        ]);
        assert_eq!(found.faults[&FaultKind::OutOfMemory], 1);
        assert_eq!(found.faults[&FaultKind::DeviceLost], 1);
        assert_eq!(found.recovery_rate, Some(0.5));
        assert_eq!(found.incidents.len(), 2);
    }

    #[test]
    fn a_cut_off_last_line_is_told_apart_from_broken_ones() {
        let broken = |number, cut_off| Line::Broken { number, why: "bad".into(), cut_off };
        let header = Line::Header(Header { version: 2, time_us: 0, pid: 1 });
        let found = sum([header, broken(2, false), broken(7, true)]);
        assert_eq!((found.runs, found.version, found.broken), (1, Some(2), 1));
        assert_eq!(found.broken_lines[0].line, 2);
        assert_eq!(found.cut_off.unwrap().line, 7);
    }

    #[test]
    fn endless_names_are_counted_together() {
        let found = sum((0..3_000).map(|n| at(n, Event::new(EventKind::Note, n.to_string()))));
        assert_eq!(found.operations.len(), MAX_OPERATIONS + 1);
        assert_eq!(found.operations.iter().map(|operation| operation.count).sum::<u64>(), 3_000);
        assert!(found.operations.iter().any(|operation| operation.op == OTHERS));
    }
}
