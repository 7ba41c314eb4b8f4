//! Faults and recoveries, as the journal hears of them.

use std::sync::{Arc, Mutex, PoisonError};

use surefoot::journal::{Event, EventKind};

/// Collects what the guard tells the journal, for the run to pass on. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<Vec<Notice>>>);

/// A fault, or what was done about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Notice {
    Fault { kind: String, device: String, message: String },
    Rung { rung: String, device: String, parts: u64 },
}

impl Watch {
    /// What to give to [`surefoot::journal::JournalBuilder::listener`].
    pub fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let watch = self.clone();
        move |event| watch.hear(event)
    }

    fn hear(&self, event: &Event) {
        let device = event.device.as_deref().unwrap_or_default().to_owned();
        let notice = match (event.kind, &event.fault, &event.recovery) {
            (EventKind::Fault, Some(fault), _) => Notice::Fault {
                kind: fault.kind.to_string(),
                device,
                message: fault.message.to_string(),
            },
            (EventKind::Rung, _, Some(rung)) => {
                let parts = match event.context_value("parts") {
                    Some(parts) => parts.as_u64().unwrap_or(1),
                    None => 1,
                };
                Notice::Rung { rung: rung.to_string(), device, parts }
            }
            _ => return,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
    }

    pub(crate) fn drain(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
