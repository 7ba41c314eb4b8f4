//! The HTML page of a journal: timeline, memory, time per operation, and the history of each fault.

use std::io::{self, Write};

use serde::Serialize;
use surefoot_core::journal::{Event, EventKind, Line, VERSION};

use crate::chunk::Chunk;
use crate::page::{self, Connect, Kind};

/// Above this number, ordinary events are sampled evenly: browsers become slow with more.
const MOST_ORDINARY: usize = 200_000;
/// Faults, recovery steps and notes are never sampled; above this number the rest is dropped.
const MOST_OTHERS: usize = 200_000;

/// Collects a journal's lines and writes its page.
#[derive(Debug)]
pub struct JournalPage {
    title: String,
    source: String,
    kept: Vec<SampledEvent>,
    ordinary: usize,
    seen_ordinary: u64,
    others: usize,
    stride: u64,
    cut: u64,
    runs: u64,
    broken: u64,
    newer: bool,
}

#[derive(Debug)]
struct SampledEvent {
    event: Event,
    /// The number among the ordinary ones.
    ordinary: Option<u64>,
}

#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    source: &'a str,
    live: bool,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<Chunk>,
}

impl JournalPage {
    /// An empty page with a title.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            source: String::new(),
            kept: Vec::new(),
            ordinary: 0,
            seen_ordinary: 0,
            others: 0,
            stride: 1,
            cut: 0,
            runs: 0,
            broken: 0,
            newer: false,
        }
    }

    /// A line below the title that says where the events are from.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// Adds the next line of the journal.
    pub fn add(&mut self, line: &Line) {
        match line {
            Line::Event(event) => self.add_event(event),
            Line::Header(header) => {
                self.runs += 1;
                self.newer |= header.version > VERSION;
            }
            Line::Broken { .. } => self.broken += 1,
        }
    }

    fn add_event(&mut self, event: &Event) {
        if !is_ordinary(event) {
            if self.others == MOST_OTHERS {
                self.cut += 1;
                return;
            }
            self.others += 1;
            self.kept.push(SampledEvent { event: event.clone(), ordinary: None });
            return;
        }
        let number = self.seen_ordinary;
        self.seen_ordinary += 1;
        if !number.is_multiple_of(self.stride) {
            return;
        }
        self.kept.push(SampledEvent { event: event.clone(), ordinary: Some(number) });
        self.ordinary += 1;
        if self.ordinary > MOST_ORDINARY {
            self.stride *= 2;
            let stride = self.stride;
            self.kept.retain(|kept| kept.ordinary.is_none_or(|n| n.is_multiple_of(stride)));
            self.ordinary = self.kept.iter().filter(|kept| kept.ordinary.is_some()).count();
        }
    }

    /// Writes the page.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut chunk = Chunk::of(0, self.kept.iter().map(|kept| &kept.event));
        chunk.stride = (self.stride > 1).then_some(self.stride);
        chunk.runs = self.runs;
        let data = Data {
            title: &self.title,
            source: &self.source,
            live: false,
            notes: self.notes(),
            chunk: Some(chunk),
        };
        page::write(out, Kind::Journal, Connect::Nowhere, &self.title, &data)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.broken > 0 {
            let lines = if self.broken == 1 {
                "1 broken line was"
            } else {
                &format!("{} broken lines were", self.broken)
            };
            notes.push(format!("{lines} skipped."));
        }
        if self.cut > 0 {
            notes.push(format!("{} faults, rungs and notes at the end are left out.", self.cut));
        }
        if self.newer {
            notes.push("A newer surefoot wrote this journal and may read more from it.".to_owned());
        }
        notes
    }
}

/// The page that fills itself from a live run.
#[cfg(feature = "live")]
pub(crate) fn write_live(out: impl Write, title: &str, source: &str) -> io::Result<()> {
    let data = Data { title, source, live: true, notes: Vec::new(), chunk: None };
    page::write(out, Kind::Journal, Connect::Home, title, &data)
}

/// Whether losing one of many would be no loss to the story.
fn is_ordinary(event: &Event) -> bool {
    let kind = matches!(
        event.kind,
        EventKind::Move | EventKind::Allocation | EventKind::Step | EventKind::Cleanup
    );
    kind && event.fault.is_none() && event.recovery.is_none()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::page::tests::data_of;
    use surefoot_core::fault::FaultKind;

    fn data(page: &JournalPage) -> serde_json::Value {
        let mut html = Vec::new();
        page.write(&mut html).unwrap();
        data_of(&html)
    }

    #[test]
    fn a_page_carries_all_events_and_what_was_odd_about_the_file() {
        let mut page = JournalPage::new("run.jsonl").source("from here");
        page.add(&Line::Event(Event::new(EventKind::Step, "a")));
        page.add(&Line::Broken { number: 2, why: "bad".into(), cut_off: false });
        let data = data(&page);
        assert_eq!((&data["title"], &data["source"]), (&"run.jsonl".into(), &"from here".into()));
        assert_eq!(data["chunk"]["count"], 1);
        assert_eq!(data["notes"][0], "1 broken line was skipped.");
    }

    #[test]
    fn a_long_journal_is_thinned_evenly_and_keeps_every_fault() {
        let mut page = JournalPage::new("long");
        for number in 0..3 * MOST_ORDINARY as u64 {
            let mut step = Event::new(EventKind::Step, "s");
            step.time_us = number;
            page.add(&Line::Event(step));
            if number.is_multiple_of(1000) {
                let fault = Event::new(EventKind::Fault, "s").fault(FaultKind::Numeric, "x");
                page.add(&Line::Event(fault));
            }
        }
        let faults = 3 * MOST_ORDINARY / 1000;
        let data = data(&page);
        let kept = data["chunk"]["count"].as_u64().unwrap() as usize;
        assert_eq!(data["chunk"]["stride"], 4);
        assert_eq!(kept, 3 * MOST_ORDINARY / 4 + faults);
    }
}
