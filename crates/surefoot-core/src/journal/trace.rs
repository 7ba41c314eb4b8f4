//! A journal as a trace for Perfetto or `chrome://tracing`: the JSON form of the Trace Event Format.
//!
//! Each device is a process of the trace, work without one belongs to `host`; each thread that
//! recorded something is a lane in it. Events with a duration are slices, others are instants,
//! faults always are; memory is a counter per device. Times are µs since the earliest start.
//!
//! Events come in the order they ended and the trace is sorted by start, so all of it is held:
//! 200 to 300 bytes an event.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use serde::Serialize;

use super::event::Context;
use super::{Event, EventKind};

/// Takes events and writes them as a trace.
#[derive(Debug, Default)]
pub struct Trace {
    /// The rendered events without their beginning, since the time before them is known last.
    rendered: Vec<u8>,
    index: Vec<Track>,
    devices: BTreeMap<String, u32>,
    lanes: HashMap<(u32, u32), u32>,
    used: BTreeSet<(u32, u32)>,
    noted: HashMap<u32, u64>,
}

#[derive(Debug)]
struct Track {
    start_ns: u64,
    from: usize,
    to: usize,
}

#[derive(Serialize)]
struct Rendered<'a, A> {
    name: &'a str,
    cat: &'a str,
    ph: &'a str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Whose height an instant has: its lane's or its device's.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    args: A,
}

#[derive(Serialize)]
struct Details<'a> {
    level: super::Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a super::FaultNote>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Context<'a>>,
}

#[derive(Serialize)]
struct Bytes {
    bytes: u64,
}

const HOST: u32 = 1;

impl Trace {
    /// Takes the next event.
    pub fn add(&mut self, event: &Event) -> io::Result<()> {
        let pid = self.device(event);
        let next = self.lanes.len() as u32 + 1;
        let tid = *self.lanes.entry((event.pid, event.thread)).or_insert(next);
        self.used.insert((pid, tid));

        let end_ns = event.time_us.saturating_mul(1000);
        let slice = event.duration_ns().filter(|_| event.kind != EventKind::Fault);
        let start_ns = end_ns.saturating_sub(slice.unwrap_or(0));
        let name = match (&event.kind, &event.fault, &event.recovery) {
            (EventKind::Fault, Some(fault), _) => format!("{}: {}", event.op, fault.kind),
            (EventKind::Rung, _, Some(rung)) => format!("{}: {rung}", event.op),
            _ => event.op.to_string(),
        };
        let args = Details {
            level: event.level,
            dtype: event.dtype.as_deref(),
            bytes: event.bytes,
            fault: event.fault.as_ref(),
            recovery: event.recovery.as_deref(),
            context: (!event.context.is_empty()).then_some(Context(&event.context)),
        };
        let scope = if event.fault.is_some() { "p" } else { "t" };
        let rendered = Rendered {
            name: &name,
            cat: event.kind.as_str(),
            ph: if slice.is_some() { "X" } else { "i" },
            pid,
            tid,
            dur: slice.map(|ns| ns as f64 / 1000.0),
            s: slice.is_none().then_some(scope),
            args,
        };
        self.push(start_ns, &rendered)?;
        self.count_memory(event, pid, end_ns)
    }

    /// Writes the trace as one JSON document.
    pub fn write(mut self, mut out: impl Write) -> io::Result<()> {
        self.index.sort_by_key(|place| place.start_ns);
        let origin_ns = self.index.first().map_or(0, |place| place.start_ns);
        let origin_us = origin_ns / 1000;
        write!(
            out,
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"origin_us\":\"{origin_us}\"}},"
        )?;
        write!(out, "\"traceEvents\":[")?;
        let mut separator = "\n";
        for (pid, tid, what, name) in self.names() {
            let name = serde_json::to_string(&name)?;
            write!(
                out,
                "{separator}{{\"ts\":0,\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\
                 \"name\":\"{what}\",\"args\":{{\"name\":{name}}}}}"
            )?;
            separator = ",\n";
        }
        for Track { start_ns, from, to } in &self.index {
            let ns = start_ns - origin_ns;
            write!(out, "{separator}{{\"ts\":{}.{:03},", ns / 1000, ns % 1000)?;
            out.write_all(&self.rendered[*from..*to])?;
            separator = ",\n";
        }
        out.write_all(b"\n]}\n")?;
        out.flush()
    }

    fn device(&mut self, event: &Event) -> u32 {
        let Some(device) = event.device.as_deref() else { return HOST };
        if let Some(pid) = self.devices.get(device) {
            return *pid;
        }
        let pid = HOST + 1 + self.devices.len() as u32;
        self.devices.insert(device.to_owned(), pid);
        pid
    }

    /// What a device says it holds, or else the sum of what was noted as taken and given back.
    fn count_memory(&mut self, event: &Event, pid: u32, time_ns: u64) -> io::Result<()> {
        let in_use = event.context_value("in_use").and_then(super::Value::as_u64);
        let (name, bytes) = match (in_use, event.kind, event.bytes) {
            (Some(bytes), ..) => ("memory in use", bytes),
            (None, EventKind::Allocation | EventKind::Cleanup, Some(bytes)) => {
                let noted = self.noted.entry(pid).or_default();
                *noted = match event.kind {
                    EventKind::Cleanup => noted.saturating_sub(bytes),
                    _ => noted.saturating_add(bytes),
                };
                ("noted allocations", *noted)
            }
            _ => return Ok(()),
        };
        let args = Bytes { bytes };
        let counter =
            Rendered { name, cat: "memory", ph: "C", pid, tid: 0, dur: None, s: None, args };
        self.push(time_ns, &counter)
    }

    fn push(&mut self, start_ns: u64, rendered: &impl Serialize) -> io::Result<()> {
        let before = self.rendered.len();
        serde_json::to_writer(&mut self.rendered, rendered)?;
        // Without the opening brace: the time goes before it.
        self.index.push(Track { start_ns, from: before + 1, to: self.rendered.len() });
        Ok(())
    }

    /// The names of devices and lanes, as metadata of the trace.
    fn names(&self) -> Vec<(u32, u32, &'static str, String)> {
        let mut names = Vec::new();
        if self.used.iter().any(|(pid, _)| *pid == HOST) {
            names.push((HOST, 0, "process_name", "host".to_owned()));
        }
        for (device, pid) in &self.devices {
            names.push((*pid, 0, "process_name", device.clone()));
        }
        let lanes: HashMap<u32, (u32, u32)> =
            self.lanes.iter().map(|(owner, tid)| (*tid, *owner)).collect();
        for (pid, tid) in &self.used {
            if let Some((process, thread)) = lanes.get(tid) {
                let name = format!("process {process}, thread {thread}");
                names.push((*pid, *tid, "thread_name", name));
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;
    use serde_json::Value as Json;
    use std::time::Duration;

    fn traced(events: impl IntoIterator<Item = Event>) -> Vec<Json> {
        let mut trace = Trace::default();
        events.into_iter().for_each(|event| trace.add(&event).unwrap());
        let mut out = Vec::new();
        trace.write(&mut out).unwrap();
        let document: Json = serde_json::from_slice(&out).unwrap();
        document["traceEvents"].as_array().unwrap().clone()
    }

    fn at(time_us: u64, thread: u32, mut event: Event) -> Event {
        (event.time_us, event.pid, event.thread) = (time_us, 77, thread);
        event
    }

    fn step(us: u64) -> Event {
        Event::new(EventKind::Step, "forward").device("gpu").duration(Duration::from_micros(us))
    }

    fn find<'a>(events: &'a [Json], ph: &str) -> Vec<&'a Json> {
        events.iter().filter(|event| event["ph"] == ph).collect()
    }

    #[test]
    fn every_event_has_what_perfetto_needs_in_order_of_its_start() {
        let events = traced([
            at(1_000, 1, step(100)),
            at(1_050, 2, step(900)),
            at(1_060, 2, Event::new(EventKind::Note, "say \"hi\"\n")),
            at(1_070, 1, Event::new(EventKind::Fault, "x").fault(FaultKind::Numeric, "NaN")),
            at(1_080, 1, Event::new(EventKind::Allocation, "weights").device("gpu").bytes(9)),
        ]);
        let mut last = 0.0;
        for event in &events {
            for field in ["ts", "pid", "tid"] {
                assert!(event[field].is_number(), "{field} of {event}");
            }
            assert!(event["ph"].is_string() && event["name"].is_string(), "{event}");
            let ts = event["ts"].as_f64().unwrap();
            assert!(ts >= last, "{event} comes before {last}");
            last = ts;
        }
        let slices = find(&events, "X");
        assert_eq!((slices[0]["ts"].as_f64(), slices[0]["dur"].as_f64()), (Some(0.0), Some(900.0)));
        assert_eq!(slices[1]["ts"].as_f64(), Some(750.0));
    }

    #[test]
    fn devices_are_processes_and_threads_are_lanes_with_names() {
        let events = traced([
            at(10, 1, step(1)),
            at(11, 2, step(1)),
            at(12, 1, step(1).device("cpu")),
            at(13, 1, Event::new(EventKind::Selection, "chain")),
        ]);
        let name = |what: &str, pid: &Json, tid: u64| {
            let found = events
                .iter()
                .find(|event| event["name"] == what && event["pid"] == *pid && event["tid"] == tid);
            found.unwrap()["args"]["name"].as_str().unwrap().to_owned()
        };
        let slices = find(&events, "X");
        assert_eq!(slices[0]["pid"], slices[1]["pid"]);
        assert_ne!(slices[0]["tid"], slices[1]["tid"]);
        assert_ne!(slices[0]["pid"], slices[2]["pid"]);
        assert_eq!(name("process_name", &slices[0]["pid"], 0), "gpu");
        assert_eq!(name("process_name", &slices[2]["pid"], 0), "cpu");
        let tid = slices[1]["tid"].as_u64().unwrap();
        assert_eq!(name("thread_name", &slices[1]["pid"], tid), "process 77, thread 2");
        assert_eq!(name("process_name", &find(&events, "i")[0]["pid"], 0), "host");
    }

    #[test]
    fn faults_are_instants_and_memory_is_a_counter() {
        let memory = |kind, bytes| Event::new(kind, "pool").device("gpu").bytes(bytes);
        let events = traced([
            at(1, 1, memory(EventKind::Allocation, 100)),
            at(2, 1, memory(EventKind::Allocation, 50)),
            at(3, 1, memory(EventKind::Cleanup, 120)),
            at(4, 1, step(1).context("in_use", 4096)),
            at(5, 1, step(1).fault(FaultKind::OutOfMemory, "full")),
            at(6, 1, {
                let fault = Event::new(EventKind::Fault, "forward").device("gpu");
                fault.fault(FaultKind::OutOfMemory, "full").duration(Duration::from_secs(1))
            }),
        ]);
        let noted: Vec<_> = find(&events, "C")
            .into_iter()
            .map(|event| {
                (event["name"].as_str().unwrap(), event["args"]["bytes"].as_u64().unwrap())
            })
            .collect();
        let sums = [100, 150, 30].map(|bytes| ("noted allocations", bytes));
        assert_eq!(noted[..3], sums);
        assert_eq!(noted[3], ("memory in use", 4096));
        let fault = events.iter().find(|event| event["cat"] == "fault").unwrap();
        assert_eq!((&fault["ph"], &fault["s"]), (&Json::from("i"), &Json::from("p")));
        assert_eq!(fault["name"], "forward: out_of_memory");
        assert_eq!(fault["args"]["fault"]["message"], "full");
    }

    #[test]
    fn an_empty_trace_is_still_a_document() {
        assert!(traced([]).is_empty());
    }
}
