//! The first cause in a whole log.
//!
//! A log is fed in pieces of any size and need not fit memory. One quick pass finds the lines that
//! may be errors; each distinct one is put to the rules once; the lines of a Python traceback count
//! as one event. Errors that are close together are one failure. The last failure is what ended the
//! program: its first event that is not an echo (a time-out of the other ranks, a launcher that lost
//! its children) is the cause, and the events after it follow from it.

use std::collections::HashMap;
use std::sync::OnceLock;

use aho_corasick::AhoCorasick;
use serde::Serialize;
use surefoot_core::fault::FaultKind;

use crate::answer::{Answer, answer};
use crate::explain::explain_by_rules;

/// More ordinary lines than this between two errors: the program went on after the first.
const APART: u64 = 200;
/// The most events that are kept; of more, the first and the latest are.
const MOST_EVENTS: usize = 10_000;
/// The most distinct lines that are put to the rules.
const MOST_DISTINCT: usize = 20_000;
/// The longest part of a line that is read, and the longest traceback that is kept.
const LONGEST_LINE: usize = 4096;
const LONGEST_TRACEBACK: usize = 32 << 10;

/// Pieces of words that lines with errors have. They have no first letter where it may be a capital.
const MARKS: &[&str] = &[
    "rror",
    "ERROR",
    "xception",
    "ailed",
    "FAIL",
    "raceback (most",
    "panicked",
    "ssert",
    "bort",
    "ut of memory",
    "OUT_OF_MEMORY",
    "OOM",
    "illed",
    "atchdog",
    "fault",
    "terminate called",
    "not implemented",
    "llegal",
    "Xid",
    "core dumped",
    "device lost",
    "timed out",
];

/// Words of lines that only echo what happened elsewhere.
const ECHOES: &[&str] = &[
    "watchdog",
    "childfailederror",
    "elastic.multiprocessing",
    "closing signal sigterm",
    "connection reset by peer",
    "broken pipe",
    "connection closed by",
    "collective operation timeout",
    "nccl communicator was aborted",
    "process group has not been",
    "calledprocesserror",
    "remote process exited",
    "socket timeout",
    "the above exception",
    "exited with exit code",
];

/// One error in a log.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogEvent {
    /// The line, counted from 1.
    pub line: u64,
    /// Its kind, by the rules.
    pub kind: FaultKind,
    /// What the line says, cut to a readable length.
    pub text: String,
    /// Whether it only echoes what happened elsewhere.
    pub echo: bool,
}

/// What a log says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogAnswer {
    /// Lines read.
    pub lines: u64,
    /// The first cause of the last failure; `None` where the log has no error that rules know.
    pub first: Option<LogEvent>,
    /// What the first cause means.
    #[serde(flatten)]
    pub answer: Answer,
    /// Errors that follow from it.
    pub follows: Vec<LogEvent>,
    /// Errors that the program survived before, the latest last.
    pub survived: Vec<LogEvent>,
}

/// A traceback that is being read.
struct Traceback {
    /// What a logger puts before each of its lines.
    prefix: String,
    line: u64,
    text: String,
}

/// Reads a log piece by piece.
#[derive(Default)]
pub struct LogReader {
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    lines: u64,
    open: Vec<Traceback>,
    events: Vec<(LogEvent, String)>,
    known: HashMap<u64, Option<FaultKind>>,
    /// The end of the log, for a text without any known error.
    tail: Vec<u8>,
}

impl LogReader {
    /// A reader that has read nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads on.
    pub fn feed(&mut self, bytes: &[u8]) {
        const TAIL: usize = 64 << 10;
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if end == 0 {
            let room = LONGEST_LINE.saturating_sub(self.rest.len());
            self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
            return;
        }
        if self.rest.is_empty() {
            self.read(&bytes[..end]);
        } else {
            let first = bytes.iter().position(|&byte| byte == b'\n').map_or(end, |at| at + 1);
            let mut line = std::mem::take(&mut self.rest);
            line.extend_from_slice(&bytes[..first]);
            self.read(&line);
            self.read(&bytes[first..end]);
        }
        let rest = &bytes[end..];
        self.rest.extend_from_slice(&rest[..rest.len().min(LONGEST_LINE)]);
        let last = &bytes[bytes.len().saturating_sub(TAIL)..];
        self.tail.extend_from_slice(last);
        let over = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..over);
    }

    /// Reads whole lines.
    fn read(&mut self, bytes: &[u8]) {
        static SEARCH: OnceLock<Option<AhoCorasick>> = OnceLock::new();
        let Some(search) = SEARCH.get_or_init(|| AhoCorasick::new(MARKS).ok()) else { return };
        let mut at = 0;
        while at < bytes.len() {
            if !self.open.is_empty() {
                at = self.read_line(bytes, at);
                continue;
            }
            let Some(hit) = search.find(&bytes[at..]) else {
                self.lines += newlines(&bytes[at..]);
                return;
            };
            let hit = at + hit.start();
            let start = bytes[at..hit].iter().rposition(|&b| b == b'\n').map_or(at, |n| at + n + 1);
            self.lines += newlines(&bytes[at..start]);
            at = self.read_line(bytes, start);
        }
    }

    /// Reads the line that begins at `start`, and says where the next one begins.
    fn read_line(&mut self, bytes: &[u8], start: usize) -> usize {
        let length = bytes[start..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - start);
        let line = &bytes[start..start + length];
        self.lines += 1;
        let line = String::from_utf8_lossy(&line[..line.len().min(LONGEST_LINE)]).into_owned();
        self.take_line(line.trim_end_matches('\r'));
        start + length + 1
    }

    fn take_line(&mut self, line: &str) {
        const MOST_OPEN: usize = 64;
        if let Some(at) = line.find("Traceback (most recent call last)") {
            let prefix = line[..at].to_owned();
            self.open.retain(|open| open.prefix != prefix);
            if self.open.len() < MOST_OPEN {
                self.open.push(Traceback { prefix, line: self.lines, text: format!("{line}\n") });
            }
            return;
        }
        let of = self.open.iter().position(|open| line.starts_with(&open.prefix));
        if let Some(at) = of {
            let open = &mut self.open[at];
            let content = &line[open.prefix.len()..];
            if open.text.len() < LONGEST_TRACEBACK {
                open.text.push_str(content);
                open.text.push('\n');
            }
            let inside = content.is_empty() || content.starts_with([' ', '\t', '|', '│']);
            if inside && open.text.len() < LONGEST_TRACEBACK {
                return;
            }
            let closed = self.open.swap_remove(at);
            self.note(closed.line, content, closed.text);
            return;
        }
        self.note(self.lines, line, line.to_owned());
    }

    /// Keeps a line as an event if the rules know it as an error.
    fn note(&mut self, number: u64, line: &str, context: String) {
        let mark = signature(line);
        let kind = match self.known.get(&mark) {
            Some(&kind) => kind,
            None if self.known.len() >= MOST_DISTINCT => None,
            None => {
                let kind = kind_of_line(line);
                self.known.insert(mark, kind);
                kind
            }
        };
        let Some(kind) = kind else { return };
        if self.events.len() >= MOST_EVENTS {
            self.events.remove(MOST_EVENTS / 2);
        }
        let lower = line.to_ascii_lowercase();
        let echo = ECHOES.iter().any(|word| lower.contains(word));
        let shown: String = line.trim().chars().take(240).collect();
        self.events.push((LogEvent { line: number, kind, text: shown, echo }, context));
    }

    /// What the log says, after all of it was read.
    pub fn finish(mut self) -> LogAnswer {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.read(&rest);
            self.tail.extend_from_slice(&rest);
        }
        let begin = last_failure(&self.events);
        let failure = self.events.split_off(begin);
        let cause = failure.iter().position(|(event, _)| !event.echo).unwrap_or(0);
        let survived = self.events.into_iter().map(|(event, _)| event).collect();
        let first = failure.get(cause);
        let answer = match first {
            Some((_, context)) => answer(context),
            None => answer(&String::from_utf8_lossy(&self.tail)),
        };
        let others = failure.iter().enumerate().filter(|&(number, _)| number != cause);
        LogAnswer {
            lines: self.lines,
            first: first.map(|(event, _)| event.clone()),
            answer,
            follows: others.map(|(_, (event, _))| event.clone()).collect(),
            survived,
        }
    }
}

/// Where the last run of events begins that have no long stretch of other lines between them.
fn last_failure(events: &[(LogEvent, String)]) -> usize {
    let mut begin = events.len().saturating_sub(1);
    while begin > 0 && events[begin].0.line - events[begin - 1].0.line <= APART {
        begin -= 1;
    }
    begin
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// The kind of an error line; `None` for warnings, notes, and what the rules are not sure about.
fn kind_of_line(line: &str) -> Option<FaultKind> {
    let lower = line.to_ascii_lowercase();
    if ["warning", "[w", " warn ", "info:", "[info", " info ", "debug"]
        .iter()
        .any(|w| lower.contains(w))
    {
        return None;
    }
    let found = explain_by_rules(line);
    (found.recognised() && found.confidence > crate::learned::RULES_SURE_ABOVE)
        .then_some(found.kind)
}

/// The same for lines that differ in numbers only. FNV-1a, by hand since it is one line.
fn signature(line: &str) -> u64 {
    line.bytes().filter(|byte| !byte.is_ascii_digit()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &str, piece: usize) -> LogAnswer {
        let mut reader = LogReader::new();
        log.as_bytes().chunks(piece).for_each(|piece| reader.feed(piece));
        reader.finish()
    }

    fn failed_run() -> String {
        let mut log =
            String::from("RuntimeError: CUDA error: out of memory\nretrying with half the batch\n");
        for step in 0..1000 {
            log += &format!("step {step}: loss 0.5, validation error 0.1\n");
        }
        log += "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"/home/u/train.py\", line 97, in step\n[rank0]: step 1000: loss 0.5\n[rank3]:     loss = model(x)\n[rank3]: RuntimeError: CUDA error: device-side assert triggered\n";
        for rank in 0..3 {
            log += &format!(
                "[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE) ran for 600060 milliseconds before timing out.\n"
            );
        }
        log +=
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED\n";
        log
    }

    #[test]
    fn the_first_cause_is_found_and_not_the_last_echo() {
        let log = failed_run();
        for piece in [7, 100, 4096, log.len()] {
            let found = read(&log, piece);
            let first = found.first.expect("a first cause");
            assert_eq!(
                (first.line, first.kind),
                (1003, FaultKind::DeviceLost),
                "{piece}: {first:?}"
            );
            assert_eq!(found.answer.explanation.kind, FaultKind::DeviceLost);
            assert_eq!(found.answer.frame.as_ref().map(|frame| frame.line), Some(97));
            assert!(found.follows.len() >= 3 && found.follows.iter().all(|event| event.echo));
            assert_eq!(found.survived.len(), 1);
            assert_eq!(found.survived[0].line, 1);
            assert_eq!(found.lines, log.lines().count() as u64);
        }
    }

    #[test]
    fn a_log_without_errors_says_so() {
        let found = read(&"step 1: loss 0.1\n".repeat(100), 64);
        assert!(found.first.is_none() && found.follows.is_empty());
        assert_eq!(found.answer.explanation.kind, FaultKind::NotDeviceRelated);
        assert_eq!(read("", 1).lines, 0);
    }

    #[test]
    fn an_echo_is_the_cause_where_nothing_else_is_known() {
        let found = read(
            "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1) ran for 600060 milliseconds before timing out.\n",
            50,
        );
        assert!(found.first.is_some_and(|first| first.echo));
    }
}
