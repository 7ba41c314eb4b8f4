//! The journal: what happened on which device, kept so that a crash can be understood afterwards.
//!
//! Whatever the core does that matters is an [`Event`], given to a [`Journal`] that passes it to its
//! sinks: a JSONL file, a bounded ring in memory, and `tracing`. A journal that is off costs one
//! branch. Views of a journal are [`Summary`] for people and [`Trace`] for Perfetto.
//!
//! ```
//! use std::time::Duration;
//! use surefoot_core::journal::{Event, EventKind, Journal};
//!
//! let journal = Journal::builder().ring(64).build();
//! journal.with(|| {
//!     Event::new(EventKind::Step, "forward").device("gpu").duration(Duration::from_micros(870))
//! });
//! assert_eq!(journal.recent()[0].op, "forward");
//! ```
//!
//! # The file
//!
//! One JSON object a line. Every process that opens the file appends a header line, so a file can
//! hold several runs, one after the other or at once:
//!
//! ```json
//! {"surefoot_journal":1,"time_us":1763182295123456,"pid":4321}
//! {"time_us":1763182295124456,"pid":4321,"thread":2,"kind":"step","op":"forward","device":"gpu","dtype":"f16","bytes":4096,"duration_ns":870000}
//! ```
//!
//! | field | meaning |
//! | --- | --- |
//! | `time_us` | when it was recorded, so when it ended: µs since 1970 |
//! | `pid`, `thread` | the process, and the thread as a small number of its own; left out where it is 1 |
//! | `kind` | an [`EventKind`] |
//! | `level` | a [`Level`]; left out where it is the kind's usual one |
//! | `op` | the operation, as the caller names it |
//! | `device`, `dtype` | where and in what, if that means something |
//! | `bytes`, `duration_ns` | how much and how long, if known |
//! | `fault` | `{"kind": a FaultKind, "message": text}` |
//! | `recovery` | the rung that was taken, or that led to success |
//! | `context` | more keys with a number, text or boolean each; a number that isn't finite is text |
//!
//! Readers skip fields they don't know, so a later version may add some. A version above
//! [`VERSION`] in a header means that fields may have changed their meaning.
//!
//! Each line goes to the operating system whole, in one `write` in append mode, before
//! [`Journal::record`] returns. So `kill -9` loses no event that was recorded and breaks at most
//! the last line, and threads and processes can share a file. Nothing is synced to the disk: a
//! power cut can lose more.
//!
//! # The protocol of a fault
//!
//! Events of one guarded piece of work share `op`, process and thread:
//!
//! 1. each failure is a `fault` event with the fault in it;
//! 2. each rung that is tried is a `rung` event with its name in `recovery`;
//! 3. one `step` event ends the work: it succeeded if it carries no fault, else it was given up.
//!
//! An event with `in_use` (bytes) in its context says how full its device is, one with `budget`
//! how full it may be.

mod durations;
mod event;
mod file;
mod incident;
mod line;
mod reader;
mod ring;
mod subscriber;
mod summary;
mod trace;
mod value;

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub use durations::Timing;
pub use event::{Event, EventKind, FaultNote, Level};
pub use incident::{Incident, IncidentCounts, IncidentEnd, RungTried};
pub use reader::{Header, Line, Reader};
pub use summary::{BrokenLine, Operation, Summarizer, Summary};
pub use trace::Trace;
pub use value::Value;

use file::FileSink;
use ring::Ring;

/// The version of the file's schema that this build writes.
pub const VERSION: u32 = 1;

/// Where events go. Clones share the same sinks; the default is off.
#[derive(Clone, Debug, Default)]
pub struct Journal(Option<Arc<Sinks>>);

#[derive(Debug)]
struct Sinks {
    pid: u32,
    file: Option<FileSink>,
    ring: Option<Ring>,
    tracing: bool,
    listeners: Vec<Listener>,
}

/// A function that is called with each event as it happens.
struct Listener(Box<dyn Fn(&Event) + Send + Sync>);

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

impl Journal {
    /// A journal that keeps nothing and costs nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// Starts a journal without sinks; add at least one or it stays off.
    pub fn builder() -> JournalBuilder {
        JournalBuilder::default()
    }

    /// Whether events go anywhere.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records an event, stamped with the time, the process and the thread. A write that fails
    /// is kept for [`Journal::flush`].
    #[inline]
    pub fn record(&self, event: Event) {
        if let Some(sinks) = &self.0 {
            sinks.record(event);
        }
    }

    /// Like [`Journal::record`], but makes the event only if the journal is on.
    #[inline]
    pub fn with(&self, make: impl FnOnce() -> Event) {
        if let Some(sinks) = &self.0 {
            sinks.record(make());
        }
    }

    /// The latest events in the order they came, if there is a ring.
    pub fn recent(&self) -> Vec<Event> {
        self.ring().map(Ring::recent).unwrap_or_default()
    }

    /// Returns the first write error since the last call, with the number of events it cost.
    /// There is nothing else to wait for: events are with the operating system already.
    pub fn flush(&self) -> io::Result<()> {
        self.0.as_ref().and_then(|sinks| sinks.file.as_ref()).map_or(Ok(()), FileSink::take_error)
    }

    fn ring(&self) -> Option<&Ring> {
        self.0.as_ref()?.ring.as_ref()
    }
}

impl Sinks {
    fn record(&self, mut event: Event) {
        event.time_us = now_us();
        event.pid = self.pid;
        event.thread = THREAD.try_with(|number| *number).unwrap_or_default();
        if self.tracing {
            subscriber::emit(&event);
        }
        if let Some(file) = &self.file {
            file.append(&event);
        }
        for listener in &self.listeners {
            (listener.0)(&event);
        }
        if let Some(ring) = &self.ring {
            ring.push(event);
        }
    }
}

/// Chooses a journal's sinks.
#[derive(Debug, Default)]
pub struct JournalBuilder {
    file: Option<FileSink>,
    ring: Option<Ring>,
    tracing: bool,
    listeners: Vec<Listener>,
}

impl JournalBuilder {
    /// Appends to a file, made if it isn't there. A file that ends in a broken line goes on after it.
    pub fn file(mut self, path: impl AsRef<Path>) -> io::Result<Self> {
        self.file = Some(FileSink::open(path.as_ref())?);
        Ok(self)
    }

    /// Keeps the latest `capacity` events in memory.
    pub fn ring(mut self, capacity: usize) -> Self {
        self.ring = (capacity > 0).then(|| Ring::new(capacity));
        self
    }

    /// Passes events on to `tracing`, with the target `surefoot::journal`.
    pub fn tracing(mut self) -> Self {
        self.tracing = true;
        self
    }

    /// Calls `listener` with each event, in the thread that records it. It should be quick. There
    /// can be several; they are called in the order in which they were added.
    pub fn listener(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listeners.push(Listener(Box::new(listener)));
        self
    }

    /// The journal; off if no sink was chosen.
    pub fn build(self) -> Journal {
        let Self { file, ring, tracing, listeners } = self;
        let on = file.is_some() || ring.is_some() || tracing || !listeners.is_empty();
        let pid = std::process::id();
        Journal(on.then(|| Arc::new(Sinks { pid, file, ring, tracing, listeners })))
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().saturating_mul(1_000_000) + u64::from(since.subsec_micros())
}

thread_local! {
    /// This thread's number, since std's own ids can't be printed.
    static THREAD: u32 = {
        static NEXT: AtomicU32 = AtomicU32::new(event::FIRST_THREAD);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// Text long enough for any message worth reading, so that a line stays far below what readers take.
const MAX_TEXT: usize = 16 * 1024;

#[inline]
fn bounded(text: Cow<'static, str>) -> Cow<'static, str> {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let end = text.floor_char_boundary(MAX_TEXT);
    Cow::Owned(format!("{}… ({} more bytes)", &text[..end], text.len() - end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(op: &'static str) -> Event {
        Event::new(EventKind::Step, op)
    }

    #[test]
    fn a_journal_without_sinks_is_off_and_makes_no_event() {
        let journal = Journal::builder().ring(0).build();
        assert!(!journal.is_on());
        journal.with(|| panic!("made an event for nobody"));
        assert!(journal.recent().is_empty());
        assert!(journal.flush().is_ok());
    }

    #[test]
    fn clones_share_the_ring() {
        let journal = Journal::builder().ring(8).build();
        journal.clone().record(step("a"));
        journal.with(|| step("b"));
        let ops: Vec<_> = journal.recent().into_iter().map(|event| event.op).collect();
        assert_eq!(ops, ["a", "b"]);
    }

    #[test]
    fn every_listener_is_called_with_each_event_as_it_happens() {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let listener = |name: &'static str| {
            let seen = Arc::clone(&seen);
            move |event: &Event| seen.lock().unwrap().push(format!("{name}: {}", event.op))
        };
        let journal = Journal::builder().listener(listener("1")).listener(listener("2")).build();
        journal.record(step("a"));
        assert_eq!(*seen.lock().unwrap(), ["1: a", "2: a"]);
        journal.record(step("b"));
        assert_eq!(*seen.lock().unwrap(), ["1: a", "2: a", "1: b", "2: b"]);
    }

    #[test]
    fn recording_stamps_time_process_and_thread() {
        let journal = Journal::builder().ring(8).build();
        let before = now_us();
        journal.record(step("here"));
        let there = journal.clone();
        std::thread::spawn(move || there.record(step("there"))).join().unwrap();
        let events = journal.recent();
        assert!((before..=now_us()).contains(&events[0].time_us));
        assert_eq!(events[0].pid, std::process::id());
        assert_ne!(events[0].thread, events[1].thread);
    }

    #[test]
    fn overlong_text_is_cut_at_a_character_and_says_so() {
        let event = step("x").fault(crate::fault::FaultKind::Numeric, "é".repeat(MAX_TEXT));
        let message = event.fault.unwrap().message;
        assert!(message.len() < MAX_TEXT + 64);
        assert!(message.ends_with("… (16384 more bytes)"), "{}", &message[MAX_TEXT - 8..]);
    }

    #[test]
    fn journals_can_be_shared_between_threads() {
        fn shared<T: Send + Sync + Clone + 'static>() {}
        shared::<Journal>();
    }
}
