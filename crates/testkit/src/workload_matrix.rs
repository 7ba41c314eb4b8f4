//! The fault matrix of a whole workload: every kind of fault strikes once at every moment of an
//! operation, on a chain of two devices. What must happen is written in tables here.

use surefoot_core::fault::{Fault, FaultKind};
use surefoot_core::recover::{Drill, Rung};

use FaultKind as K;
use Rung::{NextDevice, Reclaim, Split};

/// The rung that answers the first fault of a guarded run, or none if the run ends with it.
pub const FIRST_ANSWERS: [(FaultKind, Option<Rung>); 16] = [
    (K::OutOfMemory, Some(Reclaim)),
    (K::DeviceMismatch, Some(Reclaim)),
    (K::DtypeMismatch, Some(Reclaim)),
    (K::UnsupportedDtype, Some(NextDevice)),
    (K::UnsupportedOp, Some(NextDevice)),
    (K::PlaceholderStorage, Some(Reclaim)),
    (K::DeviceLost, Some(NextDevice)),
    (K::DriverOrInit, Some(NextDevice)),
    (K::KernelCompile, Some(NextDevice)),
    (K::CommandBuffer, Some(Reclaim)),
    (K::ShapeMismatch, None),
    (K::Numeric, None),
    (K::DataLoading, None),
    (K::ModelLoading, None),
    (K::StateLost, None),
    (K::NotDeviceRelated, None),
];

/// After memory was reclaimed and the batch split in two: the rung that answers a fault between
/// the two parts, or none if the run ends with it.
pub const BETWEEN_PARTS: [(FaultKind, Option<Rung>); 16] = [
    (K::OutOfMemory, Some(Split)),
    (K::DeviceMismatch, None),
    (K::DtypeMismatch, None),
    (K::UnsupportedDtype, Some(NextDevice)),
    (K::UnsupportedOp, Some(NextDevice)),
    (K::PlaceholderStorage, Some(NextDevice)),
    (K::DeviceLost, Some(NextDevice)),
    (K::DriverOrInit, Some(NextDevice)),
    (K::KernelCompile, Some(NextDevice)),
    (K::CommandBuffer, Some(NextDevice)),
    (K::ShapeMismatch, None),
    (K::Numeric, None),
    (K::DataLoading, None),
    (K::ModelLoading, None),
    (K::StateLost, None),
    (K::NotDeviceRelated, None),
];

/// A fault inside a block of a model, which is a segment that can run on the CPU alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAnswer {
    /// The block is run again, on its device or on the CPU; nothing else is repeated.
    BlockAgain,
    /// The whole run is repeated after this rung.
    RunAgain(Rung),
    /// The run ends with the fault.
    Ends,
}

/// What answers a fault at an operation inside a block of a model.
pub const IN_A_BLOCK: [(FaultKind, BlockAnswer); 16] = {
    use BlockAnswer::{BlockAgain, Ends, RunAgain};
    [
        (K::OutOfMemory, BlockAgain),
        (K::DeviceMismatch, BlockAgain),
        (K::DtypeMismatch, BlockAgain),
        (K::UnsupportedDtype, BlockAgain),
        (K::UnsupportedOp, BlockAgain),
        (K::PlaceholderStorage, BlockAgain),
        (K::DeviceLost, RunAgain(NextDevice)),
        (K::DriverOrInit, RunAgain(NextDevice)),
        (K::KernelCompile, BlockAgain),
        (K::CommandBuffer, BlockAgain),
        (K::ShapeMismatch, Ends),
        (K::Numeric, Ends),
        (K::DataLoading, Ends),
        (K::ModelLoading, Ends),
        (K::StateLost, Ends),
        (K::NotDeviceRelated, Ends),
    ]
};

/// The rungs that a run under a drill took, whose result was right; or the fault that ended it.
pub type Ended = Result<Vec<Rung>, Fault>;

/// Strikes `operation` with every kind at `moments`, such as `at=before` or
/// `at=during,point=read`. `work` does the workload under a drill, checks its result itself and
/// says how the operation ended.
pub fn strike_once(operation: &str, moments: &[&str], mut work: impl FnMut(&Drill, &str) -> Ended) {
    for moment in moments {
        for (kind, answer) in FIRST_ANSWERS {
            let text = format!("{kind}:op={operation},{moment}");
            check(kind, &text, answer.as_slice(), answer.is_some(), &mut work);
        }
    }
}

/// Makes memory run out twice in the run number `step` of `operation`, so that it is split in two,
/// and strikes every kind between the two parts.
pub fn strike_between_parts(
    operation: &str,
    step: u64,
    mut work: impl FnMut(&Drill, &str) -> Ended,
) {
    for (kind, answer) in BETWEEN_PARTS {
        let text = format!(
            "out_of_memory:op={operation},step={step},count=2;\
             {kind}:op={operation},step={step},at=between-parts"
        );
        let rungs: Vec<Rung> = [Reclaim, Split].into_iter().chain(answer).collect();
        check(kind, &text, &rungs, answer.is_some(), &mut work);
    }
}

/// Strikes every kind at an operation inside a block of a model, in the guarded run `operation`.
pub fn strike_in_a_block(
    operation: &str,
    moment: &str,
    mut work: impl FnMut(&Drill, &str) -> Ended,
) {
    for (kind, answer) in IN_A_BLOCK {
        let text = format!("{kind}:op={operation},at=during,{moment}");
        let (rungs, survives) = match answer {
            BlockAnswer::BlockAgain => (vec![], true),
            BlockAnswer::RunAgain(rung) => (vec![rung], true),
            BlockAnswer::Ends => (vec![], false),
        };
        check(kind, &text, &rungs, survives, &mut work);
    }
}

fn check(
    kind: FaultKind,
    text: &str,
    rungs: &[Rung],
    survives: bool,
    work: &mut impl FnMut(&Drill, &str) -> Ended,
) {
    let drill: Drill = text.parse().unwrap_or_else(|error| panic!("{error}"));
    match work(&drill, text) {
        Ok(taken) => {
            assert!(survives, "{text}: survived by {taken:?}");
            assert_eq!(taken, rungs, "{text}");
        }
        Err(fault) => {
            assert!(!survives, "{text}: {fault}");
            assert_eq!(fault.kind, kind, "{text}: {fault}");
        }
    }
    for rule in drill.strikes() {
        assert!(rule.struck > 0, "{text}: {} never struck", rule.rule);
    }
}

#[test]
fn the_tables_have_every_kind() {
    for kind in FaultKind::ALL {
        assert!(FIRST_ANSWERS.iter().any(|(other, _)| *other == kind), "{kind}");
        assert!(BETWEEN_PARTS.iter().any(|(other, _)| *other == kind), "{kind}");
        assert!(IN_A_BLOCK.iter().any(|(other, _)| *other == kind), "{kind}");
    }
}
