//! A journal file, read line by line with bounded memory: the file may be huge, damaged or no
//! journal at all.

use std::io::{self, BufRead};

use serde::Deserialize;

use super::Event;

/// A line above this is broken; writers bound their text far below.
const MAX_LINE: usize = 1 << 20;
/// Nothing that has a line above this is a journal.
const MAX_SKIP: usize = 16 << 20;

/// One line of a journal.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A process began to write.
    Header(Header),
    /// Something happened.
    Event(Event),
    /// A line that holds neither.
    Broken {
        /// Its number, from 1.
        number: u64,
        /// What is wrong with it.
        why: String,
        /// It is the last one and has no end: what a process leaves that is killed while it writes.
        cut_off: bool,
    },
}

/// What a process writes first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Header {
    /// The version of the schema.
    #[serde(rename = "surefoot_journal")]
    pub version: u32,
    /// When the process opened the file: µs since 1970.
    #[serde(default)]
    pub time_us: u64,
    /// The process.
    #[serde(default)]
    pub pid: u32,
}

/// Reads a journal's lines. Ends at the end of the file or after the first error of the source.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    line: Vec<u8>,
    number: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads from a source; an unbuffered file wants a `BufReader` around it.
    pub fn new(source: R) -> Self {
        Self { source, line: Vec::new(), number: 0, ended: false }
    }

    /// Reads the next line without its newline into `self.line`. Returns how long it really was
    /// and whether it was ended by a newline; `None` at the end of the source.
    fn next_line(&mut self) -> io::Result<Option<(usize, bool)>> {
        self.line.clear();
        let mut length = 0;
        loop {
            let available = match self.source.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if available.is_empty() {
                return Ok((length > 0).then_some((length, false)));
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let piece = &available[..newline.unwrap_or(available.len())];
            let room = (MAX_LINE + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            length += piece.len();
            let used = piece.len() + usize::from(newline.is_some());
            self.source.consume(used);
            if newline.is_some() {
                return Ok(Some((length, true)));
            }
            if length > MAX_SKIP {
                let what = format!("line {} has no end within {MAX_SKIP} bytes", self.number + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }

    fn parse(&self, length: usize) -> Result<Line, String> {
        if length > MAX_LINE {
            return Err(format!("{length} bytes are too long for a line"));
        }
        // Serde would take a list for an object, field by field.
        if self.line.trim_ascii_start().first() != Some(&b'{') {
            return Err("it is not a JSON object".to_owned());
        }
        let event = match serde_json::from_slice::<Event>(&self.line) {
            Ok(event) => return Ok(Line::Event(event)),
            Err(error) => error,
        };
        serde_json::from_slice::<Header>(&self.line)
            .map(Line::Header)
            .map_err(|_| without_position(&event))
    }
}

/// serde_json counts lines within the text it was given, always 1 here: only the column helps.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
    format!("{what} (column {})", error.column())
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = io::Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let (length, whole) = match self.next_line() {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            };
            self.number += 1;
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            let number = self.number;
            let broken = |why| Line::Broken { number, why, cut_off: !whole };
            return Some(Ok(self.parse(length).unwrap_or_else(broken)));
        }
        self.ended = true;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;
    use crate::journal::line::render;
    use crate::journal::{EventKind, Level, Value};
    use proptest::prelude::*;
    use std::time::Duration;

    fn lines(text: impl AsRef<[u8]>) -> Vec<Line> {
        Reader::new(text.as_ref()).map(Result::unwrap).collect()
    }

    #[test]
    fn fields_of_a_later_version_are_skipped() {
        let text = r#"{"surefoot_journal":7,"host":"x","time_us":5,"pid":2}
{"time_us":9,"kind":"teleport","op":"x","colour":{"a":[1]},"context":{"list":[1,2]}}"#;
        let found = lines(text);
        assert_eq!(found[0], Line::Header(Header { version: 7, time_us: 5, pid: 2 }));
        let Line::Event(event) = &found[1] else { panic!("{found:?}") };
        assert_eq!((event.kind, event.level), (EventKind::Unknown, Level::Info));
        assert_eq!(event.context_value("list"), Some(&Value::from("[…]")));
    }

    #[test]
    fn broken_lines_are_numbered_and_do_not_stop_the_rest() {
        let good = r#"{"time_us":9,"kind":"note","op":"x"}"#;
        let found = lines(format!("{good}\n\nnot json\n{good}\r\n{{\"time_us\":9,\"ki"));
        assert!(matches!(found[0], Line::Event(_)));
        assert!(matches!(found[1], Line::Broken { number: 3, cut_off: false, .. }));
        assert!(matches!(found[2], Line::Event(_)));
        assert!(matches!(found[3], Line::Broken { number: 5, cut_off: true, .. }));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn a_last_line_that_only_lacks_its_newline_counts() {
        assert!(matches!(lines(r#"{"time_us":9,"kind":"note","op":"x"}"#)[..], [Line::Event(_)]));
    }

    #[test]
    fn what_is_missing_is_named() {
        let found = lines("{\"time_us\":9,\"kind\":\"note\"}\n");
        let [Line::Broken { why, .. }] = &found[..] else { panic!("{found:?}") };
        assert!(why.contains("missing field `op`"), "{why}");
    }

    #[test]
    fn only_objects_are_events_or_headers() {
        for text in ["[2]", "[9,1,1,\"note\",null,\"x\"]", "7", "\0\0"] {
            assert!(matches!(lines(text)[..], [Line::Broken { .. }]), "{text}");
        }
    }

    #[test]
    fn an_overlong_line_is_broken_and_an_endless_one_ends_the_reading() {
        let long = "x".repeat(MAX_LINE + 1);
        let found = lines(format!("{long}\n{{\"time_us\":9,\"kind\":\"note\",\"op\":\"x\"}}\n"));
        assert!(matches!(found[..], [Line::Broken { number: 1, .. }, Line::Event(_)]));
        let mut endless = Reader::new(io::BufReader::new(io::repeat(0)));
        assert_eq!(endless.next().unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(endless.next().is_none());
        assert!(endless.line.capacity() < 4 * MAX_LINE);
    }

    /// Any characters; `any::<String>()` leaves out those that JSON must escape.
    fn any_text() -> impl Strategy<Value = String> {
        prop::collection::vec(any::<char>(), 0..8).prop_map(|text| text.into_iter().collect())
    }

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i32>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
            any_text().prop_map(Value::from),
        ]
    }

    prop_compose! {
        fn any_event()(
            kind in prop::sample::select(&EventKind::ALL[..]),
            level in prop::sample::select(
                &[Level::Trace, Level::Debug, Level::Info, Level::Warn, Level::Error][..]
            ),
            op in any_text(),
            (time, pid, thread) in any::<(u64, u32, u32)>(),
            (device, dtype, recovery) in (
                prop::option::of(any_text()), prop::option::of(any_text()), prop::option::of(any_text())
            ),
            (bytes, duration) in any::<(Option<u64>, Option<u64>)>(),
            fault in prop::option::of((prop::sample::select(&FaultKind::ALL[..]), any_text())),
            context in prop::collection::vec((any_text(), any_value()), 0..4),
        ) -> Event {
            let mut event = Event::new(kind, op).level(level);
            (event.time_us, event.pid, event.thread, event.bytes) = (time, pid, thread, bytes);
            event.device = device.map(Into::into);
            event.dtype = dtype.map(Into::into);
            event.recovery = recovery.map(Into::into);
            event.duration = duration.map(Duration::from_nanos);
            if let Some((kind, message)) = fault {
                event = event.fault(kind, message);
            }
            context.into_iter().fold(event, |event, (key, value)| event.context(key, value))
        }
    }

    proptest! {
        #[test]
        fn events_come_back_as_they_were(events in prop::collection::vec(any_event(), 0..8)) {
            let mut text = Vec::new();
            for event in &events {
                let start = text.len();
                render(event, &mut text).unwrap();
                let by_serde = serde_json::to_vec(event).unwrap();
                prop_assert_eq!(&text[start..], &by_serde);
                text.push(b'\n');
            }
            prop_assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), events.len());
            let found = lines(text);
            prop_assert_eq!(found, events.into_iter().map(Line::Event).collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in any::<Vec<u8>>()) {
            let _ = lines(bytes);
        }

        #[test]
        fn a_cut_anywhere_costs_at_most_the_last_line(
            events in prop::collection::vec(any_event(), 1..5),
            at in any::<prop::sample::Index>(),
        ) {
            let mut text = Vec::new();
            for event in &events {
                serde_json::to_writer(&mut text, event).unwrap();
                text.push(b'\n');
            }
            text.truncate(at.index(text.len()));
            let whole = text.iter().filter(|byte| **byte == b'\n').count();
            let found = lines(text);
            prop_assert!((whole..=whole + 1).contains(&found.len()));
            for (line, event) in found.iter().zip(&events).take(whole) {
                prop_assert_eq!(line, &Line::Event(event.clone()));
            }
        }
    }
}
