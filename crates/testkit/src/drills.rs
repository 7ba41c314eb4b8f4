//! Every fault kind, injected in every rung.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use surefoot::device::{DeviceName, OpenDevice, Selector};
use surefoot::journal::{EventKind, Journal};
use surefoot::recover::{Drill, Part, Policy, Rung};
use surefoot::{Fault, FaultKind, Footing};

use crate::SECOND_CPU;

/// How long one drilled job may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rows of small whole numbers: sums of them are exact, so results are compared bit for bit.
fn rows(rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * columns).map(|i| (i % 7) as f32 - 3.0).collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape([rows, columns])
}

/// The result that the drilled job must give.
fn expected() -> Vec<f32> {
    let host = Device::flex();
    read(rows(8, 5, &host).matmul(rows(5, 3, &host)))
}

fn read(tensor: Tensor<2>) -> Vec<f32> {
    tensor.to_data_as::<f32>().try_to_vec().expect("fp32")
}

/// A batch of 8 through a weight of its own, with every rung open to it.
fn job(footing: &Footing) -> Result<Vec<f32>, Fault> {
    let host = Device::flex();
    let task = footing
        .task("job")
        .can(Rung::Checkpoint)
        .can(Rung::Precision)
        .can(Rung::Stream)
        .can(Rung::CpuSegment);
    let result = task.run_split(
        rows(5, 3, &host),
        rows(8, 5, &host),
        |_, weights, batch| Ok(batch.matmul(weights)),
        |parts: Vec<Part<Tensor<2>>>| {
            Tensor::cat(parts.into_iter().map(|part| part.value).collect(), 0)
        },
    )?;
    Ok(read(result))
}

/// Two devices for `device`'s drills: itself, then another.
fn chain(device: &OpenDevice) -> Selector {
    let other = if device.name() == DeviceName::CPU { SECOND_CPU } else { DeviceName::CPU };
    Selector::Chain(vec![device.name(), other])
}

/// For each kind, and for each rung that its ladder has, lets that kind strike so often that
/// the rung is reached and struck as well; then lets every other kind strike there. The job
/// must give the right result or end in one of the faults that struck.
pub fn every_kind_in_every_rung(device: &OpenDevice) {
    let right = expected();
    let (mut survived, mut reported) = (0, 0);
    for first in FaultKind::ALL {
        for depth in 0..=8u64 {
            for second in FaultKind::ALL {
                let drill = Drill::times(first, depth).and(Drill::once(second, depth));
                let journal = Journal::builder().ring(256).build();
                let footing = Footing::builder()
                    .devices(chain(device))
                    .policy(Policy::default().allow_lower_precision())
                    .journal(journal.clone())
                    .drill(drill)
                    .build()
                    .expect("the chain opens");
                let started = Instant::now();
                let outcome = job(&footing);
                assert!(started.elapsed() < PATIENCE, "{first} x{depth}, {second}: hung");
                match outcome {
                    Ok(result) => {
                        assert_eq!(result, right, "{first} x{depth}, {second}: wrong result");
                        survived += 1;
                    }
                    Err(fault) => {
                        assert!(
                            fault.kind == first || fault.kind == second,
                            "{first} x{depth}, {second}: {fault}"
                        );
                        assert!(fault.device.is_some(), "{fault} names no device");
                        reported += 1;
                    }
                }
                check_story(&journal, first, depth, second);
            }
        }
    }
    // Both must happen, or the drill drills nothing.
    assert!(survived > 200 && reported > 200, "{survived} survived, {reported} reported");
}

/// Nothing is silent: as many faults as struck are told, each rung too, and one end.
fn check_story(journal: &Journal, first: FaultKind, depth: u64, second: FaultKind) {
    let events = journal.recent();
    let count = |kind| events.iter().filter(|event| event.kind == kind).count();
    let (faults, rungs) = (count(EventKind::Fault), count(EventKind::Rung));
    let given_up =
        events.iter().any(|event| event.kind == EventKind::Step && event.fault.is_some());
    assert_eq!(count(EventKind::Step), 1, "{first} x{depth}, {second}: one end");
    assert_eq!(
        faults,
        rungs + usize::from(given_up),
        "{first} x{depth}, {second}: every fault but the last is answered by a rung"
    );
}
