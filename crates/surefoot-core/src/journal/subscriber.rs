//! Events passed on to whoever listens through `tracing`.

use super::{Event, Level};

/// A macro, since `tracing` fixes an event's level where it is written.
macro_rules! emit_at {
    ($level:ident, $event:ident) => {
        tracing::event!(
            target: "surefoot::journal",
            tracing::Level::$level,
            op = &*$event.op,
            kind = $event.kind.as_str(),
            device = $event.device.as_deref(),
            dtype = $event.dtype.as_deref(),
            bytes = $event.bytes,
            duration_ns = $event.duration_ns(),
            fault = $event.fault.as_ref().map(|fault| fault.kind.as_str()),
            recovery = $event.recovery.as_deref(),
            context = $event.has_context().then(|| tracing::field::display($event.context_text())),
            message = $event.fault.as_ref().map(|fault| &*fault.message),
        )
    };
}

pub(super) fn emit(event: &Event) {
    match event.level {
        Level::Trace => emit_at!(TRACE, event),
        Level::Debug => emit_at!(DEBUG, event),
        Level::Info => emit_at!(INFO, event),
        Level::Warn => emit_at!(WARN, event),
        Level::Error => emit_at!(ERROR, event),
    }
}

impl Event {
    fn has_context(&self) -> bool {
        !self.context.is_empty()
    }

    fn context_text(&self) -> String {
        let pairs: Vec<_> =
            self.context.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;
    use crate::journal::{EventKind, Journal};
    use std::fmt::{Debug, Write};
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};

    #[derive(Clone, Default)]
    struct Listener(Arc<Mutex<Vec<String>>>);

    struct Heard(String);

    impl Visit for Heard {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, " {field}={value:?}").unwrap();
        }
    }

    impl tracing::Subscriber for Listener {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::DEBUG
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let metadata = event.metadata();
            let mut heard = Heard(format!("{} {}", metadata.level(), metadata.target()));
            event.record(&mut heard);
            self.0.lock().unwrap().push(heard.0);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn listeners_hear_the_fields_that_are_there_at_the_events_level() {
        let listener = Listener::default();
        tracing::subscriber::with_default(listener.clone(), || {
            let journal = Journal::builder().tracing().build();
            journal.record(Event::new(EventKind::Step, "forward").device("gpu").context("n", 3));
            journal.record(Event::new(EventKind::Note, "hidden").level(Level::Trace));
            journal.record(Event::new(EventKind::Fault, "load").fault(FaultKind::Numeric, "a NaN"));
        });
        let heard = listener.0.lock().unwrap();
        assert_eq!(
            *heard,
            [
                "DEBUG surefoot::journal op=\"forward\" kind=\"step\" device=\"gpu\" context=n=3",
                "ERROR surefoot::journal op=\"load\" kind=\"fault\" fault=\"numeric\" message=\"a NaN\"",
            ]
        );
    }
}
