//! Events in the columnar form that the page's scripts read: numbers, with texts replaced by their
//! index in a list of strings. A column with one value throughout is that value alone, and index 0
//! means no text.
//!
//! ```json
//! {"number":0,"origin":1763182295123456,"count":2,"strings":["","forward","cpu"],
//!  "dt":[0,870],"kind":4,"level":1,"op":1,"device":2,"ns":[870000,869000],"context":{"1":[3,0.5]}}
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use surefoot_core::journal::{Event, EventKind, Level, Value};

/// Columns of events. See the module's header.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Chunk {
    /// The number of the first event, counted over the whole run.
    pub(crate) number: u64,
    /// When the first event was recorded: µs since 1970.
    origin: u64,
    count: usize,
    /// If ordinary events are sampled: one in so many is included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stride: Option<u64>,
    /// The number of events before this chunk that were dropped.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) lost: u64,
    /// The number of processes that wrote.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) runs: u64,
    strings: Vec<String>,
    dt: Column,
    kind: Column,
    level: Column,
    op: Column,
    device: Column,
    dtype: Column,
    pid: Column,
    thread: Column,
    bytes: Column,
    ns: Column,
    fault: Column,
    message: Column,
    rung: Column,
    context: BTreeMap<usize, Vec<Scalar>>,
    #[serde(skip)]
    known: HashMap<String, i64>,
    #[serde(skip)]
    last_us: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The values of one field.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Column {
    Same(i64),
    Each(Vec<i64>),
}

impl Default for Column {
    fn default() -> Self {
        Self::Same(0)
    }
}

impl Column {
    /// Adds the value of event number `at`.
    fn push(&mut self, at: usize, value: i64) {
        match self {
            Self::Same(same) if at == 0 => *same = value,
            Self::Same(same) if *same == value => {}
            Self::Same(same) => {
                let mut each = vec![*same; at];
                each.push(value);
                *self = Self::Each(each);
            }
            Self::Each(each) => each.push(value),
        }
    }
}

/// The index of a name in the list of strings, or a value.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Scalar {
    Name(i64),
    Value(Value),
}

/// Integers up to this are exact in JavaScript.
const EXACT: i128 = 1 << 53;

impl Chunk {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, strings: vec![String::new()], ..Self::default() }
    }

    pub(crate) fn of<'a>(number: u64, events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut chunk = Self::new(number);
        events.into_iter().for_each(|event| chunk.push(event));
        chunk
    }

    pub(crate) fn push(&mut self, event: &Event) {
        let at = self.count;
        if at == 0 {
            self.origin = event.time_us;
            self.last_us = event.time_us;
        }
        let dt = i128::from(event.time_us) - i128::from(self.last_us);
        self.last_us = event.time_us;
        self.dt.push(at, dt.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
        self.kind.push(at, kind_number(event.kind));
        self.level.push(at, level_number(event.level));
        let text = |chunk: &mut Self, text: Option<&str>| text.map_or(0, |text| chunk.name(text));
        let op = self.name(&event.op);
        self.op.push(at, op);
        let device = text(self, event.device.as_deref());
        self.device.push(at, device);
        let dtype = text(self, event.dtype.as_deref());
        self.dtype.push(at, dtype);
        self.pid.push(at, event.pid.into());
        self.thread.push(at, event.thread.into());
        let number =
            |value: Option<u64>| value.map_or(-1, |v| i64::try_from(v).unwrap_or(i64::MAX));
        self.bytes.push(at, number(event.bytes));
        self.ns.push(at, number(event.duration_ns()));
        let fault = text(self, event.fault.as_ref().map(|fault| fault.kind.as_str()));
        self.fault.push(at, fault);
        let message = text(self, event.fault.as_ref().map(|fault| &*fault.message));
        self.message.push(at, message);
        let rung = match (&event.recovery, event.kind) {
            (None, EventKind::Rung) => Some("unnamed"),
            (rung, _) => rung.as_deref(),
        };
        let rung = text(self, rung);
        self.rung.push(at, rung);
        if !event.context.is_empty() {
            let mut pairs = Vec::with_capacity(2 * event.context.len());
            for (key, value) in &event.context {
                pairs.push(Scalar::Name(self.name(key)));
                pairs.push(Scalar::Value(exact(value)));
            }
            self.context.insert(at, pairs);
        }
        self.count += 1;
    }

    fn name(&mut self, text: &str) -> i64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        let number = self.strings.len() as i64;
        self.strings.push(text.to_owned());
        self.known.insert(text.to_owned(), number);
        number
    }
}

fn exact(value: &Value) -> Value {
    match value {
        Value::Int(number) if number.abs() > EXACT => Value::Text(Cow::Owned(number.to_string())),
        other => other.clone(),
    }
}

fn kind_number(kind: EventKind) -> i64 {
    EventKind::ALL.iter().position(|known| *known == kind).unwrap_or(EventKind::ALL.len() - 1)
        as i64
}

fn level_number(level: Level) -> i64 {
    match level {
        Level::Trace => 0,
        Level::Debug => 1,
        Level::Info => 2,
        Level::Warn => 3,
        Level::Error => 4,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use surefoot_core::fault::FaultKind;
    use surefoot_core::recover::Rung;

    fn at(time_us: u64, mut event: Event) -> Event {
        (event.time_us, event.pid, event.thread) = (time_us, 7, 1);
        event
    }

    #[test]
    fn a_column_is_one_value_until_values_differ() {
        let step = || Event::new(EventKind::Step, "forward").device("cpu");
        let events = [
            at(100, step().duration(Duration::from_nanos(5))),
            at(103, step().context("loss", 0.5)),
            at(102, step().fault(FaultKind::Numeric, "NaN").context("big", u64::MAX)),
        ];
        let json = serde_json::to_value(Chunk::of(9, &events)).unwrap();
        assert_eq!(json["number"], 9);
        assert_eq!((&json["origin"], &json["count"]), (&json!(100), &json!(3)));
        assert_eq!(json["dt"], json!([0, 3, -1]));
        assert_eq!((&json["op"], &json["device"], &json["pid"]), (&json!(1), &json!(2), &json!(7)));
        assert_eq!(json["ns"], json!([5, -1, -1]));
        assert_eq!(json["strings"], json!(["", "forward", "cpu", "loss", "numeric", "NaN", "big"]));
        assert_eq!(json["fault"], json!([0, 0, 4]));
        assert_eq!(json["context"]["1"], json!([3, 0.5]));
        assert_eq!(json["context"]["2"], json!([6, "18446744073709551615"]));
    }

    #[test]
    fn the_smallest_and_largest_times_do_not_overflow() {
        let note = || Event::new(EventKind::Note, "x");
        let json = serde_json::to_value(Chunk::of(0, &[at(0, note()), at(u64::MAX, note())]));
        assert_eq!(json.unwrap()["dt"], json!([0, i64::MAX]));
    }

    #[test]
    fn the_page_knows_kinds_and_levels_by_the_same_numbers() {
        let script = include_str!("page/js/events.js");
        let names: Vec<String> = EventKind::ALL.iter().map(|kind| format!("\"{kind}\"")).collect();
        assert!(script.contains(&format!("const KINDS = [{}];", names.join(", "))));
        assert!(script.contains(r#"["trace", "debug", "info", "warn", "error"]"#));
        let stories = include_str!("page/js/stories.js");
        for kind in FaultKind::ALL {
            assert!(stories.contains(&format!("  {kind}: ")), "{kind} has no meaning there");
        }
        for rung in Rung::ALL {
            let name = rung.as_str();
            assert!(stories.contains(&format!("  {name}: ")), "{name} has no description there");
        }
    }
}
