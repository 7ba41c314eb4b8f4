//! Guarded work on the processor under two names, with drills.

use std::cell::RefCell;

use burn::tensor::{Int, Tensor};

use super::{Drill, Part, Policy, Rung, Step};
use crate::device::{Backend, DeviceName, Selector};
use crate::fault::{BoxError, Fault, FaultKind};
use crate::footing::Footing;
use crate::journal::Journal;

const SPARE: DeviceName = DeviceName { backend: Backend::Cpu, index: 1 };

fn footing(drill: &str) -> Footing {
    let drill = if drill.is_empty() { Drill::default() } else { drill.parse().unwrap() };
    Footing::builder()
        .devices(Selector::Chain(vec![SPARE, DeviceName::CPU]))
        .drill(drill)
        .journal(Journal::builder().ring(64).build())
        .build()
        .unwrap()
}

#[test]
fn a_pair_of_different_lengths_is_refused_not_cut_short() {
    let footing = footing("");
    let device = footing.device().unwrap().burn().clone();
    let run = |targets: usize| -> Result<u64, Fault> {
        let inputs = Tensor::<2>::ones([8, 3], &device);
        let targets = Tensor::<1, Int>::ones([targets], &device);
        let count = |_: &Step<'_>, (): (), (x, _): (Tensor<2>, Tensor<1, Int>)| {
            Ok::<_, BoxError>(x.dims()[0] as u64)
        };
        let add = |parts: Vec<Part<u64>>| parts.iter().map(|part| part.value).sum();
        footing.task("pair").run_split((), (inputs, targets), count, add)
    };
    assert_eq!(run(8).unwrap(), 8);
    let fault = run(4).unwrap_err();
    assert_eq!(fault.kind, FaultKind::ShapeMismatch);
    assert!(fault.root_cause().contains("8 samples beside 4"), "{fault}");
}

#[test]
fn a_small_last_batch_does_not_undo_what_was_learned_of_whole_ones() {
    // Reclaiming doesn't help, two parts do.
    let footing = footing("out_of_memory:count=2");
    let run = |samples: usize| -> u64 {
        let parts = |step: &Step<'_>| Ok::<_, BoxError>(step.parts() as u64);
        footing.task("epoch").run_in_parts(samples, parts).unwrap()
    };
    assert_eq!(run(8), 2);
    assert_eq!(run(1), 1);
    assert_eq!(run(8), 2, "the next epoch must not run out of memory again");
}

#[test]
fn a_segment_stays_on_the_cpu_only_for_what_its_device_can_never_do() {
    // Each for long enough that nothing but the CPU is left.
    for (drill, after) in [
        ("out_of_memory:count=2,device=cpu:1", SPARE),
        ("unsupported_op:count=1,device=cpu:1", DeviceName::CPU),
        ("kernel_compile:count=2,device=cpu:1", DeviceName::CPU),
    ] {
        let policy = Policy::default()
            .ladder(FaultKind::OutOfMemory, [Rung::Reclaim, Rung::CpuSegment])
            .ladder(FaultKind::UnsupportedOp, [Rung::CpuSegment])
            .ladder(FaultKind::KernelCompile, [Rung::Reclaim, Rung::CpuSegment]);
        let footing = Footing::builder()
            .devices(Selector::only(SPARE))
            .drill(drill.parse().unwrap())
            .policy(policy)
            .build()
            .unwrap();
        let x = Tensor::<1>::ones([2], footing.device().unwrap().burn());
        let seen = RefCell::new(Vec::new());
        for _ in 0..2 {
            let work = |step: &Step<'_>, x: Tensor<1>| {
                seen.borrow_mut().push(step.device_name());
                Ok::<_, BoxError>(x * 2)
            };
            footing.task("segment").run_segment(x.clone(), work).unwrap();
        }
        assert_eq!(*seen.borrow(), [DeviceName::CPU, after], "{drill}");
    }
}

#[test]
fn a_recovery_that_cannot_be_compared_is_told_and_one_that_gives_nan_is_refused() {
    let footing = || {
        Footing::builder()
            .devices(Selector::only(SPARE))
            .drill(Drill::once(FaultKind::CommandBuffer, 0))
            .policy(Policy::default().verify_recovery(true))
            .journal(Journal::builder().ring(64).build())
            .build()
            .unwrap()
    };
    let nan_elsewhere = |step: &Step<'_>| {
        Ok::<_, BoxError>(if step.device_name() == DeviceName::CPU { 1.0 } else { f64::NAN })
    };
    let fault = footing().run("nan", nan_elsewhere).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Numeric);
    let footing = footing();
    let x = footing.run("mask", |step| Ok(Tensor::<1>::ones([1], step.device()).bool())).unwrap();
    assert_eq!(x.dims(), [1]);
    let told = footing.journal().recent();
    assert!(told.iter().any(|event| event.context_value("verified").is_some()), "{told:?}");
}
