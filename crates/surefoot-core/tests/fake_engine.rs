//! The suites that every engine passes, on an engine of plain vectors.

use surefoot_core::device::DeviceName;
use surefoot_core::fault::{Fault, FaultKind};
use surefoot_core::recover::Rung;
use surefoot_core::{Engine, Footing};
use testkit::fake::{Fake, GPU, Vector};
use testkit::suite::Devices;

testkit::engine_suite!(
    gpu,
    testkit::fake::Fake,
    Some(testkit::suite::Devices {
        first: testkit::fake::GPU,
        second: surefoot_core::device::DeviceName::CPU
    })
);
testkit::engine_suite!(cpu, testkit::fake::Fake, Some(crate::CPU));

const CPU: Devices = Devices {
    first: DeviceName { backend: surefoot_core::device::Backend::Cpu, index: 1 },
    second: DeviceName::CPU,
};

fn footing() -> Footing<Fake> {
    Footing::builder().build().expect("it opens")
}

#[test]
fn auto_takes_the_first_candidate_and_says_why() {
    let footing = footing();
    assert_eq!(footing.reason(), "gpu is the best device here");
    assert_eq!(footing.health().len(), 2);
}

#[test]
fn a_list_with_a_device_that_is_not_in_the_build_goes_on_with_the_others() {
    let build =
        |devices: &str| Footing::<Fake>::builder().devices(devices.parse().expect("names")).build();
    let footing = build("cuda,cpu").expect("the CPU is there");
    assert_eq!(footing.health()[0].0, DeviceName::CPU);
    let fault = build("cuda").map(drop).expect_err("nothing is left");
    assert_eq!(fault.kind, FaultKind::DriverOrInit);
    assert!(fault.to_string().contains("'cuda' is not in this build"), "{fault}");
}

#[test]
fn a_result_that_failed_on_the_device_is_found_when_it_is_confirmed() {
    let footing = footing();
    let outcome = footing
        .run("tainted", |step| {
            let vector = Vector::new(vec![1.0], step.device());
            Ok(match step.device_name() == GPU {
                true => vector.tainted(FaultKind::DeviceLost),
                false => vector,
            })
        })
        .expect("the CPU does it");
    assert_eq!(outcome.rungs, [Rung::NextDevice]);
    assert_eq!(outcome.device, DeviceName::CPU);
    assert_eq!(outcome.faults[0].device.as_deref(), Some("gpu"));
}

#[test]
fn memory_of_a_failed_try_is_free_before_the_next() {
    let footing = footing();
    let engine = footing.engine();
    let device = footing.device().expect("it is open");
    let outcome = footing
        .run("leak", |step| {
            assert_eq!(engine.memory_in_use(&device), 0, "try {}", step.attempt());
            let vector = Vector::new(vec![0.0; 64], step.device());
            match step.attempt() {
                1 => Err(Fault::new(FaultKind::OutOfMemory, "leak", "x").into()),
                _ => Ok(vector),
            }
        })
        .expect("the second try works");
    assert_eq!(engine.memory_in_use(&device), 256);
    drop(outcome);
    assert_eq!(engine.memory_in_use(&device), 0);
}

#[test]
fn host_and_device_memory_are_told_apart() {
    let room = footing().room().expect("it is open");
    assert!(!room.is_shared);
    assert_eq!(room.device, testkit::fake::MEMORY);
    assert!(room.host > room.device, "{room:?}");
}
