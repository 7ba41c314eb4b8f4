//! Races that need a process of their own: the test starts itself again.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use surefoot::device::{DeviceName, open};
use surefoot_serve::lanes::Lanes;

use super::{INPUTS, Subject, cold_race};

/// Tells a child what to do.
const ROLE: &str = "SUREFOOT_RACE_CHILD";

/// No child takes longer; one that does hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Does what this process was started for; false in the one that a person started.
pub(crate) fn play_role() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let (role, device) = role.split_once(' ').unwrap();
    let device: DeviceName = device.parse().unwrap();
    match role {
        "cold" => first_forwards(device),
        "exit" => leave_in_flight(device),
        other => panic!("no role '{other}'"),
    }
    true
}

/// Every thread's first forward, in a process that has run nothing.
fn first_forwards(device: DeviceName) {
    let device = open(device).unwrap();
    let handle = device.burn();
    let subjects = [Subject::mlp(handle), Subject::block(handle), Subject::bert(handle)];
    cold_race(&device, &subjects, 12);
}

/// Leaves while eight threads are in the midst of their forwards.
fn leave_in_flight(device: DeviceName) {
    let lanes = Arc::new(Lanes::new(open(device).unwrap(), 8));
    let subject = Subject::block(lanes.device().burn());
    let done = Arc::new(AtomicUsize::new(0));
    for thread in 0..8 {
        let (lanes, subject, done) = (lanes.clone(), subject.clone(), done.clone());
        std::thread::spawn(move || {
            loop {
                let (key, subject) = (subject.key(), subject.clone());
                let forward =
                    move |device: &_| Ok::<_, ()>(subject.forward(thread % INPUTS, device));
                lanes.run(&key, forward).unwrap();
                done.fetch_add(1, SeqCst);
            }
        });
    }
    while done.load(SeqCst) < 16 {
        std::thread::yield_now();
    }
    // Half of the children return from main, half exit from here.
    if std::process::id().is_multiple_of(2) {
        std::process::exit(0);
    }
}

/// Starts a cold race that writes down what it compiles: no kernel twice, however many threads
/// need it at once. Gives how many it was; none on a device that compiles nothing.
pub(crate) fn compiled_once(device: &str) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("compiled.log");
    let status = Command::new(std::env::current_exe().unwrap())
        .env(ROLE, format!("cold {device}"))
        .env("CUBECL_DEBUG_LOG", &log)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let log = std::fs::read_to_string(log).unwrap_or_default();
    // Each begins with the kernel's name and settings, and goes on with its source.
    let kernels = log.split("[START_KERNEL_COMPILATION]").skip(1);
    let mut kernels: Vec<_> = kernels.filter_map(|text| text.split("\nsource:").next()).collect();
    let count = kernels.len();
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(kernels.len(), count, "a kernel was compiled twice");
    count
}

/// Starts `count` children in `role`, one after the other, and sees each end well and in time.
pub(crate) fn children(role: &str, device: &str, count: usize) {
    for nth in 0..count {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, format!("{role} {device}"))
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("{role} on {device}, child {nth}: it hangs");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(status.success(), "{role} on {device}, child {nth}: {status}");
    }
}
