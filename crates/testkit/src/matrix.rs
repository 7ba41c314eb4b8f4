//! The fault matrix: every kind of fault, at every moment of a run, as often as it takes to use up
//! its ladder. What must happen is written in tables, here and in `workload_matrix.rs`.

use surefoot_core::device::DeviceName;
use surefoot_core::fault::FaultKind;
use surefoot_core::journal::{EventKind, Journal};
use surefoot_core::recover::{Drill, Moment, Rung};

use crate::suite::{DOUBLED, Devices, Lab, double, footing};
use crate::workload_matrix::BETWEEN_PARTS;

use FaultKind as K;
use Rung::{Checkpoint, NextDevice, Reclaim, Split, Stream};

/// For a job whose batch of 8 can be split, that can recompute activations and stream weights, on
/// a chain of two devices: the rungs that answer one fault after another, until none is left.
const LADDERS: [(FaultKind, &[Rung]); 16] = [
    (K::OutOfMemory, &[Reclaim, Split, Split, Split, Checkpoint, Stream, NextDevice, Reclaim]),
    (K::DeviceMismatch, &[Reclaim]),
    (K::DtypeMismatch, &[Reclaim]),
    (K::UnsupportedDtype, &[NextDevice]),
    (K::UnsupportedOp, &[NextDevice]),
    (K::PlaceholderStorage, &[Reclaim, NextDevice, Reclaim]),
    (K::DeviceLost, &[NextDevice]),
    (K::DriverOrInit, &[NextDevice]),
    (K::KernelCompile, &[NextDevice]),
    (K::CommandBuffer, &[Reclaim, NextDevice, Reclaim]),
    (K::ShapeMismatch, &[]),
    (K::Numeric, &[]),
    (K::DataLoading, &[]),
    (K::ModelLoading, &[]),
    (K::StateLost, &[]),
    (K::NotDeviceRelated, &[]),
];

#[test]
fn the_table_has_every_kind() {
    for kind in FaultKind::ALL {
        assert!(LADDERS.iter().any(|(other, _)| *other == kind), "{kind}");
    }
}

/// Strikes before the work starts.
pub fn every_fault_before_the_work<E: Lab>(devices: Devices) {
    strike_until_it_gives_up::<E>(devices, Moment::Before);
}

/// Strikes inside the work: at its first operation, which is its second point, since placing the
/// batch is the first.
pub fn every_fault_during_the_work<E: Lab>(devices: Devices) {
    strike_until_it_gives_up::<E>(devices, Moment::During);
}

/// Strikes when the work is done.
pub fn every_fault_after_the_work<E: Lab>(devices: Devices) {
    strike_until_it_gives_up::<E>(devices, Moment::After);
}

fn strike_until_it_gives_up<E: Lab>(devices: Devices, moment: Moment) {
    for (kind, ladder) in LADDERS {
        for strikes in 0..=ladder.len() + 1 {
            let what = format!("{kind} x{strikes} {}", moment.as_str());
            let drill = Drill::times(kind, strikes as u64).at(moment).nth(2);
            let journal = Journal::builder().ring(256).build();
            let footing = footing::<E>(devices, drill, journal.clone());
            match double(&footing) {
                Ok((values, rungs)) => {
                    assert!(strikes <= ladder.len(), "{what}: survived by {rungs:?}");
                    assert_eq!(values, DOUBLED, "{what}");
                    assert_eq!(rungs, ladder[..strikes], "{what}");
                }
                Err(fault) => {
                    assert_eq!(strikes, ladder.len() + 1, "{what}: {fault}");
                    assert_eq!(fault.kind, kind, "{what}");
                    assert_eq!(fault.earlier.len(), ladder.len(), "{what}");
                    let answers: Vec<_> =
                        fault.earlier.iter().filter_map(|f| f.response.as_ref()).collect();
                    assert!(answers.iter().map(|a| a.rung).eq(ladder.iter().copied()), "{what}");
                    let last = last_device(devices, ladder);
                    assert_eq!(fault.device, Some(last.to_string()), "{what}");
                }
            }
            let struck: u64 = footing.drill().strikes().iter().map(|rule| rule.struck).sum();
            assert_eq!(struck, strikes as u64, "{what}: every strike is a real one");
            check_journal(&journal, strikes, &what);
        }
    }
}

fn last_device(devices: Devices, ladder: &[Rung]) -> DeviceName {
    if ladder.contains(&NextDevice) { devices.second } else { devices.first }
}

/// Strikes between the two parts of a batch that memory made two of.
pub fn every_fault_between_parts<E: Lab>(devices: Devices) {
    for (kind, answer) in BETWEEN_PARTS {
        let split = Drill::times(K::OutOfMemory, 2);
        let drill = split.and(Drill::times(kind, 1).at(Moment::BetweenParts));
        let journal = Journal::builder().ring(256).build();
        let footing = footing::<E>(devices, drill, journal.clone());
        match (double(&footing), answer) {
            (Ok((values, rungs)), Some(answer)) => {
                assert_eq!(values, DOUBLED, "{kind}");
                assert_eq!(rungs, [Reclaim, Split, answer], "{kind}");
            }
            (Err(fault), None) => {
                assert_eq!((fault.kind, fault.earlier.len()), (kind, 2), "{fault}");
            }
            (ended, expected) => panic!("{kind}: {ended:?} where {expected:?} should answer"),
        }
        assert!(footing.drill().strikes().iter().all(|rule| rule.struck > 0), "{kind}");
        check_journal(&journal, 3, kind.as_str());
    }
}

/// Nothing is silent: each fault is recorded, each but the last of a failed run has a rung, and
/// there is one end.
fn check_journal(journal: &Journal, faults: usize, what: &str) {
    let events = journal.recent();
    let count = |kind| events.iter().filter(|event| event.kind == kind).count();
    let given_up =
        events.iter().any(|event| event.kind == EventKind::Step && event.fault.is_some());
    assert_eq!(count(EventKind::Step), 1, "{what}: one end");
    assert_eq!(count(EventKind::Fault), faults, "{what}: every fault");
    assert_eq!(count(EventKind::Rung), faults - usize::from(given_up), "{what}: every rung");
}
