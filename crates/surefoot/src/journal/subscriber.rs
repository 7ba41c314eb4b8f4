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
