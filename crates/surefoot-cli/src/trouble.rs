//! Prints faults and recovery steps to stderr as they happen, for commands that run for a long time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use surefoot::journal::{Event, EventKind};

use crate::terminal::say;

/// At most this many lines within [`WITHIN`], so that a device that fails in every pass doesn't
/// flood the terminal.
const LINES: u32 = 10;
const WITHIN: Duration = Duration::from_secs(10);

/// A journal listener that writes to stderr.
pub(crate) fn tell(quiet: bool) -> impl Fn(&Event) + Send + Sync + 'static {
    let written = Mutex::new((Instant::now(), 0_u32));
    move |event| {
        let Some(line) = line(event).filter(|_| !quiet) else { return };
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.0.elapsed() >= WITHIN {
            if written.1 > LINES {
                say(&format!("… and {} more such lines", written.1 - LINES));
            }
            *written = (Instant::now(), 0);
        }
        written.1 += 1;
        if written.1 <= LINES {
            say(&line);
        }
    }
}

fn line(event: &Event) -> Option<String> {
    let place = event.device.as_deref().map_or_else(String::new, |device| format!(" on {device}"));
    match (event.kind, &event.fault, event.recovery.as_deref()) {
        (EventKind::Fault, Some(fault), _) => {
            let message = fault.message.lines().next().unwrap_or_default();
            Some(format!("{}{place}: {}: {message}", event.op, fault.kind))
        }
        (EventKind::Rung, _, Some(rung)) => {
            Some(format!("{}{place}: recovering by {rung}", event.op))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot::FaultKind;

    #[test]
    fn faults_and_recovery_steps_are_printed_and_ordinary_steps_are_not() {
        let fault = Event::new(EventKind::Fault, "decode").device("gpu");
        let told = line(&fault.fault(FaultKind::OutOfMemory, "no room\nfor it")).unwrap();
        assert_eq!(told, "decode on gpu: out_of_memory: no room");
        let rung = line(&Event::new(EventKind::Rung, "decode").recovery("split")).unwrap();
        assert_eq!(rung, "decode: recovering by split");
        assert_eq!(line(&Event::new(EventKind::Step, "decode")), None);
    }
}
