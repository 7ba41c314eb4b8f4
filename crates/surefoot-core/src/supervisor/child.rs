//! The child's side: what it inherits, and its heartbeats.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::device::DeviceName;

/// The environment variable that a supervised process finds its inheritance in.
const VARIABLE: &str = "SUREFOOT_SUPERVISED";

/// Heartbeats are not left more often than this.
const BEAT_EVERY: Duration = Duration::from_millis(50);

/// What a supervised process knows of the ones before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inherited {
    /// How many processes died before this one.
    pub attempt: u32,
    /// Devices that took one down.
    pub lost: Vec<DeviceName>,
    /// How many died for want of memory.
    pub memory_faults: u32,
    /// The process that looks after it.
    pub(super) supervisor: Option<u32>,
    /// Where to leave heartbeats.
    pub(super) heartbeat: Option<PathBuf>,
}

impl Inherited {
    pub(super) fn pass_to(&self, command: &mut Command) {
        if let Ok(text) = serde_json::to_string(self) {
            command.env(VARIABLE, text);
        }
    }

    pub(super) fn lost_names(&self) -> String {
        self.lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Takes the inheritance away from a process that is not supervised itself.
    pub(super) fn keep_from(command: &mut Command) {
        command.env_remove(VARIABLE);
    }
}

/// Makes the process that `command` starts end when this one is gone, if it polls [`asked_to_stop`]. It is
/// not restarted.
pub fn end_with_this_process(command: &mut Command) {
    let inherited = Inherited { supervisor: Some(std::process::id()), ..Inherited::default() };
    inherited.pass_to(command);
}

/// What this process inherits; nothing if it is not supervised.
pub fn inherited() -> &'static Inherited {
    static INHERITED: OnceLock<Inherited> = OnceLock::new();
    INHERITED.get_or_init(|| {
        std::env::var(VARIABLE)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default()
    })
}

/// Leaves a heartbeat, with the device that work is about to use. Costs a few nanoseconds
/// unless the process is supervised, and little then.
pub fn beat(device: &str) {
    leave_sign(Some(device));
}

/// Leaves a heartbeat where work goes on for long: after each part of it. The device stays the
/// one that was last reported.
pub fn still_alive() {
    leave_sign(None);
}

/// Leaves a heartbeat that says that this process has done some of what it is there for, such as answering a request.
/// When it dies later, that begins a new row of restarts. Only the first call does anything.
pub fn worked() {
    if !HAS_WORKED.swap(true, Ordering::Relaxed) {
        LAST.store(0, Ordering::Relaxed);
        leave_sign(None);
    }
}

/// Whether [`worked`] was called.
static HAS_WORKED: AtomicBool = AtomicBool::new(false);
/// When the last heartbeat was left, in milliseconds; 0 if the next one must not be left out.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The second line of a heartbeat of a process that has worked.
const WORKED: &str = "worked";

/// Where heartbeats go, and the device that was reported with the last one.
struct Pulse {
    file: File,
    device: String,
}

fn leave_sign(device: Option<&str>) {
    static PULSE: OnceLock<Option<Mutex<Pulse>>> = OnceLock::new();
    static START: OnceLock<Instant> = OnceLock::new();
    let Some(pulse) = PULSE.get_or_init(|| {
        let path = inherited().heartbeat.as_ref()?;
        let file = File::options().write(true).open(path).ok()?;
        Some(Mutex::new(Pulse { file, device: DeviceName::CPU.to_string() }))
    }) else {
        return;
    };
    let now = START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1;
    let last = LAST.load(Ordering::Relaxed);
    if last != 0 && now < last + BEAT_EVERY.as_millis() as u64 {
        return;
    }
    LAST.store(now, Ordering::Relaxed);
    let mut pulse = pulse.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = device {
        device.clone_into(&mut pulse.device);
    }
    let worked = if HAS_WORKED.load(Ordering::Relaxed) { WORKED } else { "" };
    let sign = format!("{now:020} {:<40}\n{worked}", pulse.device);
    // A heartbeat that can't be left is missed by the parent, which then takes the child for hung.
    let _ = pulse.file.seek(SeekFrom::Start(0)).and_then(|_| pulse.file.write_all(sign.as_bytes()));
}

/// Whether this process should end because its supervisor asks it to, which was asked to itself in
/// a way that does not reach this process, or because its supervisor is gone.
pub fn asked_to_stop() -> bool {
    let inherited = inherited();
    inherited.heartbeat.as_deref().is_some_and(|heartbeat| stop_sign(heartbeat).exists())
        || inherited.supervisor.is_some_and(|supervisor| !is_parent(supervisor))
}

#[cfg(unix)]
fn is_parent(process: u32) -> bool {
    std::os::unix::process::parent_id() == process
}

/// Elsewhere nobody says who the parent is.
#[cfg(not(unix))]
fn is_parent(_process: u32) -> bool {
    true
}

fn stop_sign(heartbeat: &Path) -> PathBuf {
    heartbeat.with_extension("stop")
}

/// The parent's side of the heartbeats: a file that the child overwrites.
#[derive(Debug)]
pub(super) struct Heartbeat {
    path: PathBuf,
}

impl Heartbeat {
    pub(super) fn new() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
        let name = format!("surefoot-{}-{unique}-{nanos}.beat", std::process::id());
        let path = std::env::temp_dir().join(name);
        File::options().write(true).create_new(true).open(&path)?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves a sign that the child should end.
    pub(super) fn ask_to_stop(&self) -> io::Result<()> {
        // A file that somebody else put there is not followed.
        File::options().write(true).create_new(true).open(stop_sign(&self.path)).map(drop)
    }

    /// The last heartbeat: a number that changes, and the device.
    pub(super) fn listen(&self) -> (String, Option<String>) {
        let mut text = String::new();
        let read = File::open(&self.path).and_then(|mut file| file.read_to_string(&mut text));
        match (read, text.lines().next().unwrap_or_default().split_once(' ')) {
            (Ok(_), Some((beat, device))) => (beat.to_owned(), Some(device.trim().to_owned())),
            _ => (String::new(), None),
        }
    }

    /// Whether the child said that it [`worked`].
    pub(super) fn has_worked(&self) -> bool {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().nth(1) == Some(WORKED)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(stop_sign(&self.path));
    }
}
