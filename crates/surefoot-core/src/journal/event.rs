//! What an event holds, and its form in JSON.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Value, bounded};
use crate::fault::FaultKind;

/// The thread that most events come from, so it needn't be written.
pub(super) const FIRST_THREAD: u32 = 1;

/// One thing that happened. Made with [`Event::new`] and the setters; [`super::Journal::record`]
/// fills in when and where.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// When it was recorded, which is when it ended: µs since 1970.
    pub time_us: u64,
    /// The process that recorded it.
    pub pid: u32,
    /// The thread that recorded it, numbered within its process.
    pub thread: u32,
    /// What sort of thing happened.
    pub kind: EventKind,
    /// How much it matters.
    pub level: Level,
    /// The operation, as the caller names it.
    pub op: Cow<'static, str>,
    /// The device it happened on.
    pub device: Option<Cow<'static, str>>,
    /// The element type it happened in.
    pub dtype: Option<Cow<'static, str>>,
    /// How many bytes it moved, took or gave back.
    pub bytes: Option<u64>,
    /// How long it took.
    pub duration: Option<Duration>,
    /// What went wrong.
    pub fault: Option<FaultNote>,
    /// The rung that was taken, or that led to success.
    pub recovery: Option<Cow<'static, str>>,
    /// Anything else, with each key once.
    pub context: Vec<(Cow<'static, str>, Value)>,
}

/// What went wrong, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct FaultNote {
    /// The kind of fault.
    pub kind: FaultKind,
    /// What the device or library said.
    #[serde(default)]
    pub message: Cow<'static, str>,
}

/// What sort of thing an event is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A device was chosen or passed over.
    Selection,
    /// Something went from one device to another, or from one element type to another.
    Move,
    /// Memory was taken.
    Allocation,
    /// A kernel was compiled or tuned.
    Compile,
    /// A piece of work ended; with a fault in it, it was given up.
    Step,
    /// Something failed.
    Fault,
    /// A rung of the recovery ladder was tried.
    Rung,
    /// Memory was given back.
    Cleanup,
    /// Anything else worth knowing.
    Note,
    /// A kind that a later version wrote.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Selection,
        Self::Move,
        Self::Allocation,
        Self::Compile,
        Self::Step,
        Self::Fault,
        Self::Rung,
        Self::Cleanup,
        Self::Note,
        Self::Unknown,
    ];

    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Selection => "selection",
            Self::Move => "move",
            Self::Allocation => "allocation",
            Self::Compile => "compile",
            Self::Step => "step",
            Self::Fault => "fault",
            Self::Rung => "rung",
            Self::Cleanup => "cleanup",
            Self::Note => "note",
            Self::Unknown => "unknown",
        }
    }

    /// The level that events of this kind have unless they say otherwise.
    pub fn usual_level(self) -> Level {
        match self {
            Self::Move | Self::Allocation | Self::Step => Level::Debug,
            Self::Selection | Self::Compile | Self::Cleanup | Self::Note | Self::Unknown => {
                Level::Info
            }
            Self::Rung => Level::Warn,
            Self::Fault => Level::Error,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How much an event matters, from least to most.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// For someone who traces one operation.
    Trace,
    /// For someone who looks into a run.
    Debug,
    /// For everyone.
    Info,
    /// Something was repaired or worked around.
    Warn,
    /// Something failed.
    Error,
}

impl Event {
    /// An event of a kind for an operation, with the kind's usual level.
    #[inline]
    pub fn new(kind: EventKind, op: impl Into<Cow<'static, str>>) -> Self {
        Self {
            time_us: 0,
            pid: 0,
            thread: 0,
            kind,
            level: kind.usual_level(),
            op: bounded(op.into()),
            device: None,
            dtype: None,
            bytes: None,
            duration: None,
            fault: None,
            recovery: None,
            context: Vec::new(),
        }
    }

    /// Sets how much it matters.
    #[inline]
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Sets the device it happened on.
    #[inline]
    pub fn device(mut self, device: impl Into<Cow<'static, str>>) -> Self {
        self.device = Some(bounded(device.into()));
        self
    }

    /// Sets the element type.
    #[inline]
    pub fn dtype(mut self, dtype: impl Into<Cow<'static, str>>) -> Self {
        self.dtype = Some(bounded(dtype.into()));
        self
    }

    /// Sets how many bytes it moved, took or gave back.
    #[inline]
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Sets how long it took.
    #[inline]
    pub fn duration(mut self, duration: Duration) -> Self {
        self.duration = Some(duration);
        self
    }

    /// Sets what went wrong.
    #[inline]
    pub fn fault(mut self, kind: FaultKind, message: impl Into<Cow<'static, str>>) -> Self {
        self.fault = Some(FaultNote { kind, message: bounded(message.into()) });
        self
    }

    /// Sets the rung that was taken, or that led to success.
    #[inline]
    pub fn recovery(mut self, rung: impl Into<Cow<'static, str>>) -> Self {
        self.recovery = Some(bounded(rung.into()));
        self
    }

    /// Adds a key with its value; a key that is there already gets the new value.
    #[inline]
    pub fn context(mut self, key: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        self.set_context(bounded(key.into()), value.into());
        self
    }

    /// The value of a context key.
    pub fn context_value(&self, key: &str) -> Option<&Value> {
        self.context.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The duration in ns, as the file holds it: a `u64` is enough for 584 years.
    #[inline]
    pub fn duration_ns(&self) -> Option<u64> {
        self.duration.map(|duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    fn set_context(&mut self, key: Cow<'static, str>, value: Value) {
        match self.context.iter_mut().find(|(name, _)| *name == key) {
            Some((_, old)) => *old = value,
            None => self.context.push((key, value)),
        }
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time_us", &self.time_us)?;
        map.serialize_entry("pid", &self.pid)?;
        if self.thread != FIRST_THREAD {
            map.serialize_entry("thread", &self.thread)?;
        }
        map.serialize_entry("kind", self.kind.as_str())?;
        if self.level != self.kind.usual_level() {
            map.serialize_entry("level", &self.level)?;
        }
        map.serialize_entry("op", &self.op)?;
        if let Some(device) = &self.device {
            map.serialize_entry("device", device)?;
        }
        if let Some(dtype) = &self.dtype {
            map.serialize_entry("dtype", dtype)?;
        }
        if let Some(bytes) = self.bytes {
            map.serialize_entry("bytes", &bytes)?;
        }
        if let Some(duration) = self.duration_ns() {
            map.serialize_entry("duration_ns", &duration)?;
        }
        if let Some(fault) = &self.fault {
            map.serialize_entry("fault", fault)?;
        }
        if let Some(recovery) = &self.recovery {
            map.serialize_entry("recovery", recovery)?;
        }
        if !self.context.is_empty() {
            map.serialize_entry("context", &Context(&self.context))?;
        }
        map.end()
    }
}

pub(super) struct Context<'a>(pub(super) &'a [(Cow<'static, str>, Value)]);

impl Serialize for Context<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// An event as it is read: what the schema lets a writer leave out is optional here.
#[derive(serde::Deserialize)]
struct Wire {
    time_us: u64,
    #[serde(default)]
    pid: u32,
    thread: Option<u32>,
    kind: EventKind,
    level: Option<Level>,
    op: String,
    device: Option<String>,
    dtype: Option<String>,
    bytes: Option<u64>,
    duration_ns: Option<u64>,
    fault: Option<FaultNote>,
    recovery: Option<String>,
    #[serde(default)]
    context: Pairs,
}

#[derive(Default)]
struct Pairs(Vec<(Cow<'static, str>, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    pairs.push((Cow::Owned(key), value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        Ok(Self {
            time_us: wire.time_us,
            pid: wire.pid,
            thread: wire.thread.unwrap_or(FIRST_THREAD),
            kind: wire.kind,
            level: wire.level.unwrap_or(wire.kind.usual_level()),
            op: wire.op.into(),
            device: wire.device.map(Cow::Owned),
            dtype: wire.dtype.map(Cow::Owned),
            bytes: wire.bytes,
            duration: wire.duration_ns.map(Duration::from_nanos),
            fault: wire.fault,
            recovery: wire.recovery.map(Cow::Owned),
            context: wire.context.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_key_is_there_once_with_its_last_value() {
        let event = Event::new(EventKind::Note, "x").context("n", 1).context("n", 2);
        assert_eq!(event.context, [("n".into(), Value::from(2))]);
    }
}
