//! Panics as values.
//!
//! Tensor libraries such as Burn report shape, dtype and device mistakes, and some device errors, by panicking: on the
//! calling thread, or on the thread that serves a device (named `DS…` by cubecl), in which case
//! the caller only learns that its channel closed. One process-wide hook notes every panic with
//! its message and place. It prints nothing for a thread inside [`catch`] or for a device
//! thread, whose panics are reported by the fault they become, and leaves all others to the
//! hook that was there before.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use super::Fault;

/// A panic that was caught or seen on a device's thread.
#[derive(Clone, Debug)]
pub struct PanicRecord {
    /// The payload, if it was text.
    pub message: String,
    /// `file:line` of the panic.
    pub place: String,
    /// The thread that panicked.
    pub thread: String,
    at: Instant,
    /// The fault that the panic carried, where it was raised as one.
    pub(crate) fault: Option<Box<Fault>>,
}

/// How many panics of device threads are remembered.
const REMEMBERED: usize = 16;

/// How long after a device thread's panic its caller may still be about to learn of it.
const RELEVANT: Duration = Duration::from_secs(10);

static INSTALL: Once = Once::new();
static DEVICE_PANICS: Mutex<VecDeque<PanicRecord>> = Mutex::new(VecDeque::new());

thread_local! {
    static CATCHING: Cell<u32> = const { Cell::new(0) };
    static LAST: RefCell<Option<PanicRecord>> = const { RefCell::new(None) };
}

/// Runs `work` and returns its panic as a value instead of unwinding further.
///
/// State that `work` left half-changed is the caller's to discard: a guarded closure is only
/// repeated if nothing it did is visible outside.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, PanicRecord> {
    install_hook();
    CATCHING.set(CATCHING.get() + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(CATCHING.get() - 1);
    result.map_err(|payload| {
        let mut record = LAST.take().unwrap_or_else(|| PanicRecord {
            message: payload_text(payload.as_ref()),
            place: String::new(),
            thread: String::new(),
            at: Instant::now(),
            fault: None,
        });
        record.fault = payload.downcast::<Fault>().ok();
        record
    })
}

impl PanicRecord {
    /// The fault that was raised by [`raise`], if this panic is one.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }
}

/// Unwinds with `fault` as the payload: for code that has no way to return it, inside [`catch`].
pub fn raise(fault: Fault) -> ! {
    install_hook();
    panic::panic_any(fault)
}

/// What device threads panicked with lately, oldest first: the cause behind a channel that
/// closed. Each record is handed out once.
pub fn take_device_panics() -> Vec<PanicRecord> {
    let mut panics = DEVICE_PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    panics.drain(..).filter(|record| record.at.elapsed() < RELEVANT).collect()
}

/// Installs the hook; done by the first [`catch`] and by opening a device.
pub fn install_hook() {
    INSTALL.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let record = record(info);
            if record.thread.starts_with("DS") {
                let mut panics = DEVICE_PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                if panics.len() == REMEMBERED {
                    panics.pop_front();
                }
                panics.push_back(record);
            } else if CATCHING.get() > 0 {
                LAST.set(Some(record));
            } else {
                previous(info);
            }
        }));
    });
}

fn record(info: &PanicHookInfo<'_>) -> PanicRecord {
    PanicRecord {
        message: payload_text(info.payload()),
        place: info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default(),
        thread: std::thread::current().name().unwrap_or("unnamed").to_owned(),
        at: Instant::now(),
        fault: None,
    }
}

fn payload_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .or_else(|| payload.downcast_ref::<Fault>().map(ToString::to_string))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_value_with_its_message_and_place() {
        let record = catch::<()>(|| panic!("lost {}", 7)).unwrap_err();
        assert_eq!(record.message, "lost 7");
        assert!(record.place.contains("panics.rs"), "{}", record.place);
    }

    #[test]
    fn a_raised_fault_arrives_as_itself() {
        let fault = Fault::new(crate::fault::FaultKind::OutOfMemory, "op", "drill");
        let record = catch::<()>(|| raise(fault.clone())).unwrap_err();
        assert_eq!(record.fault(), Some(&fault));
    }

    #[test]
    fn work_after_a_caught_panic_is_undisturbed() {
        let _ = catch(|| panic!("first"));
        assert_eq!(catch(|| 3).unwrap(), 3);
        let inner = catch(|| catch::<()>(|| panic!("inner")).unwrap_err().message).unwrap();
        assert_eq!(inner, "inner");
    }

    #[test]
    fn a_device_threads_panic_is_kept_for_its_caller() {
        install_hook();
        std::thread::Builder::new()
            .name("DSU-test".into())
            .spawn(|| panic!("wgpu error: gone"))
            .unwrap()
            .join()
            .unwrap_err();
        let found = take_device_panics();
        assert!(found.iter().any(|record| record.message == "wgpu error: gone"));
    }
}
