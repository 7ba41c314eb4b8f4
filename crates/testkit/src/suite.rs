//! What must hold for every engine on every device: choosing, placing, guarding, splitting,
//! confirming, health, budget. `engine_suite!` makes a test of each case.
//!
//! Expectations are written here, not taken from the code under test.

use std::sync::atomic::{AtomicU32, Ordering};

use surefoot_core::device::health::Health;
use surefoot_core::device::{DeviceName, Selector};
use surefoot_core::engine::Engine;
use surefoot_core::fault::{BoxError, Fault, FaultKind};
use surefoot_core::journal::{EventKind, Journal};
use surefoot_core::precision::Precision;
use surefoot_core::recover::drill::point;
use surefoot_core::recover::{Confirm, Drill, Join, Point, Policy, Rung, Splittable, Step};
use surefoot_core::{Footing, FootingBuilder};

/// What the suite needs of an engine besides [`Engine`]: vectors of numbers and one operation.
pub trait Lab: Engine + Default {
    /// Numbers on a device, one a sample.
    type Numbers: Splittable<Self> + Confirm<Self> + Join<Self> + Clone + std::fmt::Debug;

    /// `values` on the host.
    fn on_host(values: &[f32]) -> Self::Numbers;

    /// `values` on this try's device.
    fn on_device(step: &Step<'_, Self>, values: &[f32]) -> Self::Numbers;

    /// Each number times `factor`, on the device where they are.
    fn scaled(numbers: Self::Numbers, factor: f32) -> Self::Numbers;

    /// The numbers, read back.
    fn read(numbers: &Self::Numbers) -> Vec<f32>;

    /// Whether the numbers are on the device of `step`.
    fn is_on(step: &Step<'_, Self>, numbers: &Self::Numbers) -> bool;
}

/// The device under test and another one to go on with.
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    /// The device under test.
    pub first: DeviceName,
    /// The next device of the chain.
    pub second: DeviceName,
}

/// The batch that every job runs, and what is right for it: each number doubled.
pub(crate) const BATCH: [f32; 8] = [0.0, 1.0, -2.0, 3.0, 4.5, -5.0, 6.0, 7.25];
pub(crate) const DOUBLED: [f32; 8] = [0.0, 2.0, -4.0, 6.0, 9.0, -10.0, 12.0, 14.5];

pub(crate) fn builder<E: Lab>(devices: Devices) -> FootingBuilder<E> {
    Footing::builder().devices(Selector::Chain(vec![devices.first, devices.second]))
}

pub(crate) fn footing<E: Lab>(devices: Devices, drill: Drill, journal: Journal) -> Footing<E> {
    // In half precision, which some devices choose, a rung more is open.
    let builder = builder(devices).precision(Precision::Fp32);
    builder.drill(drill).journal(journal).build().expect("the chain opens")
}

/// Doubles the batch, with every rung open to it that a batch can take. The work marks one
/// operation a part.
pub(crate) fn double<E: Lab>(footing: &Footing<E>) -> Result<(Vec<f32>, Vec<Rung>), Fault> {
    let task = footing.task("job").can(Rung::Checkpoint).can(Rung::Precision).can(Rung::Stream);
    let outcome = task.split(E::on_host(&BATCH)).run(|_, part| {
        point(Point::Operation);
        Ok(E::scaled(part, 2.0))
    })?;
    Ok((E::read(&outcome.value), outcome.rungs))
}

/// Makes a test of each case for one engine and device. `$devices` is an `Option<Devices>`; none
/// skips, where a device is not there.
#[macro_export]
macro_rules! engine_suite {
    ($module:ident, $engine:ty, $devices:expr) => {
        mod $module {
            $crate::engine_suite!(@cases $engine, $devices, suite,
                a_guarded_run_gives_its_value_and_says_that_nothing_happened,
                inputs_on_the_host_are_brought_to_the_device,
                an_outcome_says_what_was_recovered_and_how,
                a_result_that_is_not_finite_is_a_numeric_fault_where_that_is_asked_for,
                a_callers_mistake_is_reported_at_once_and_costs_no_health,
                a_typed_error_keeps_its_type_as_the_source,
                a_pair_of_different_lengths_is_refused,
                a_small_last_batch_does_not_undo_what_was_learned,
                a_segment_that_its_device_cannot_run_goes_to_the_cpu_and_is_remembered,
                a_recovery_that_gives_another_result_is_refused_and_not_noted_as_success,
                the_last_device_is_tried_again,
                work_that_is_laid_over_devices_goes_on_without_the_one_that_failed,
                a_budget_refuses_before_anything_is_allocated,
                one_fault_that_fails_several_threads_counts_once,
                threads_share_a_footing,
                work_may_change_what_it_captures,
            );
            $crate::engine_suite!(@cases $engine, $devices, matrix,
                every_fault_before_the_work,
                every_fault_during_the_work,
                every_fault_after_the_work,
                every_fault_between_parts,
            );
        }
    };
    (@cases $engine:ty, $devices:expr, $room:ident, $($case:ident,)+) => {
        $(#[test]
        fn $case() {
            if let Some(devices) = $devices {
                $crate::$room::$case::<$engine>(devices);
            }
        })+
    };
}

/// The guard adds nothing and takes nothing.
pub fn a_guarded_run_gives_its_value_and_says_that_nothing_happened<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    let outcome = footing
        .run("double", |step| Ok(E::scaled(E::on_device(step, &BATCH), 2.0)))
        .expect("it runs");
    assert_eq!(E::read(&outcome.value), DOUBLED);
    assert_eq!((outcome.attempts, outcome.parts, outcome.device), (1, 1, devices.first));
    assert!(outcome.faults.is_empty() && outcome.rungs.is_empty());
}

/// Inputs are placed before the work sees them, and that is recorded where it meant a move.
pub fn inputs_on_the_host_are_brought_to_the_device<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    let inputs = (E::on_host(&BATCH), vec![E::on_host(&[1.0])], Some(E::on_host(&[2.0])));
    let outcome = footing.task("place").run_with(inputs, |step, (batch, list, option)| {
        let all = [&batch, &list[0], option.as_ref().expect("it was given")];
        assert!(all.iter().all(|numbers| E::is_on(step, numbers)));
        Ok(E::scaled(batch, 2.0))
    });
    assert_eq!(E::read(&outcome.expect("it runs").value), DOUBLED);
}

/// Out of memory four times: the outcome and the journal say the same.
pub fn an_outcome_says_what_was_recovered_and_how<E: Lab>(devices: Devices) {
    let journal = Journal::builder().ring(64).build();
    let drill = Drill::times(FaultKind::OutOfMemory, 4);
    let footing = footing::<E>(devices, drill, journal.clone());
    let outcome = footing
        .task("double")
        .split(E::on_host(&BATCH))
        .run(|_, part| Ok(E::scaled(part, 2.0)))
        .expect("it is recovered");
    assert_eq!(E::read(&outcome.value), DOUBLED);
    let rungs = [Rung::Reclaim, Rung::Split, Rung::Split, Rung::Split];
    assert_eq!(outcome.rungs, rungs);
    assert_eq!((outcome.attempts, outcome.parts), (5, 8));
    assert!(outcome.recovered());
    let answers: Vec<_> =
        outcome.faults.iter().filter_map(|f| f.response.as_ref()).map(|r| r.parts).collect();
    assert_eq!(answers, [1, 2, 4, 8]);
    let events = journal.recent();
    let recorded: Vec<_> = events.iter().filter(|e| e.kind == EventKind::Rung).collect();
    assert_eq!(recorded.len(), rungs.len());
    for (event, rung) in recorded.iter().zip(rungs) {
        assert_eq!(event.recovery.as_deref(), Some(rung.as_str()));
    }
    assert_eq!(events.iter().filter(|e| e.kind == EventKind::Fault).count(), 4);
}

/// Infinity in a result.
pub fn a_result_that_is_not_finite_is_a_numeric_fault_where_that_is_asked_for<E: Lab>(
    devices: Devices,
) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    let work = |step: &Step<'_, E>| Ok(E::scaled(E::on_device(step, &[3e38]), 10.0));
    assert!(footing.task("grow").run(work).is_ok());
    let fault = footing.task("grow").finite().run(work).expect_err("3e39 is no fp32 number");
    assert_eq!(fault.kind, FaultKind::Numeric, "{fault}");
}

/// A mistake of the caller's is not retried, whatever the policy says.
pub fn a_callers_mistake_is_reported_at_once_and_costs_no_health<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    let mut tries = 0;
    let fault = footing
        .run("mistake", |_| {
            tries += 1;
            Err::<(), _>(Fault::new(FaultKind::ShapeMismatch, "mistake", "2 and 3").into())
        })
        .expect_err("it is reported");
    assert_eq!((fault.kind, tries), (FaultKind::ShapeMismatch, 1));
    assert_eq!(footing.health()[0], (devices.first, Health::Healthy));
}

/// The error that work returned can be found behind the fault.
pub fn a_typed_error_keeps_its_type_as_the_source<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
    let fault =
        footing.run("read", |_| Err::<(), BoxError>(missing().into())).expect_err("no such file");
    assert_eq!(fault.kind, FaultKind::NotDeviceRelated);
    let source = std::error::Error::source(&fault).expect("a source");
    let error = source.downcast_ref::<std::io::Error>().expect("the io error");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

/// What belongs together has as many samples.
pub fn a_pair_of_different_lengths_is_refused<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    let run = |targets: &[f32]| {
        let pair = (E::on_host(&BATCH), E::on_host(targets));
        footing.task("pair").split(pair).run(|_, (x, _)| Ok(E::scaled(x, 2.0)))
    };
    assert_eq!(E::read(&run(&BATCH).expect("it runs").value), DOUBLED);
    let fault = run(&BATCH[..4]).expect_err("the lengths differ");
    assert_eq!(fault.kind, FaultKind::ShapeMismatch);
    assert_eq!(fault.root_cause(), "batch sizes differ: 8 and 4");
}

/// The parts that fit are remembered for whole batches.
pub fn a_small_last_batch_does_not_undo_what_was_learned<E: Lab>(devices: Devices) {
    // Reclaiming doesn't help, two parts do.
    let drill = Drill::times(FaultKind::OutOfMemory, 2);
    let footing = footing::<E>(devices, drill, Journal::off());
    let run = |samples: usize| {
        let parts = |step: &Step<'_, E>| Ok(step.ranges(samples).count() as u64);
        footing.task("epoch").run_in_parts(samples, parts).expect("it runs").value
    };
    assert_eq!(run(8), 2);
    assert_eq!(run(1), 1);
    assert_eq!(run(8), 2, "the next epoch must not run out of memory again");
}

/// Unsupported on its device for ever: the CPU runs it, its result comes back, and the next run
/// goes there at once. A lack of memory is not remembered.
pub fn a_segment_that_its_device_cannot_run_goes_to_the_cpu_and_is_remembered<E: Lab>(
    devices: Devices,
) {
    if devices.first == DeviceName::CPU {
        return;
    }
    for (kind, faults) in [(FaultKind::UnsupportedOp, 1), (FaultKind::OutOfMemory, 6)] {
        let journal = Journal::builder().ring(64).build();
        let drill = Drill::times(kind, 100).on(&devices.first.to_string());
        let policy = Policy::default()
            .ladder(FaultKind::OutOfMemory, [Rung::Reclaim, Rung::CpuSegment])
            .ladder(FaultKind::UnsupportedOp, [Rung::CpuSegment]);
        let footing: Footing<E> = builder(devices)
            .drill(drill)
            .policy(policy)
            .journal(journal.clone())
            .build()
            .expect("the chain opens");
        for _ in 0..3 {
            let segment = footing.task("odd layer").run_segment(E::on_host(&BATCH), |step, x| {
                assert_eq!(step.device_name(), DeviceName::CPU);
                Ok(E::scaled(x, 2.0))
            });
            let outcome = segment.unwrap_or_else(|fault| panic!("{fault}"));
            assert_eq!(E::read(&outcome.value), DOUBLED);
        }
        let recorded = journal.recent().iter().filter(|e| e.kind == EventKind::Fault).count();
        assert_eq!(recorded, faults, "{kind}");
    }
}

/// With `verify_recovery`, a recovered result is compared with the CPU's before anything is noted.
pub fn a_recovery_that_gives_another_result_is_refused_and_not_noted_as_success<E: Lab>(
    devices: Devices,
) {
    let journal = Journal::builder().ring(64).build();
    let footing: Footing<E> = builder(devices)
        .drill(Drill::once(FaultKind::CommandBuffer, 0))
        .policy(Policy::default().verify_recovery(true))
        .journal(journal.clone())
        .build()
        .expect("the chain opens");
    // Wrong wherever a fault was recovered from, right where the result is checked.
    let mut runs = 0;
    let fault = footing
        .run("drift", |step| {
            runs += 1;
            let factor = if runs == 1 { 3.0 } else { 2.0 };
            Ok(E::scaled(E::on_device(step, &BATCH), factor))
        })
        .expect_err("the results differ");
    assert_eq!(fault.kind, FaultKind::Numeric, "{fault}");
    assert_eq!(fault.earlier.len(), 1);
    let health = footing.health()[0].1;
    assert_eq!(health, Health::Suspect, "it must not count as a good step");
    let ends: Vec<_> =
        journal.recent().into_iter().filter(|event| event.kind == EventKind::Step).collect();
    assert_eq!(ends.len(), 1);
    assert!(ends[0].fault.is_some(), "{ends:?}");
}

/// A device that is all we have stays in use unless it is gone.
pub fn the_last_device_is_tried_again<E: Lab>(devices: Devices) {
    let footing: Footing<E> = Footing::builder()
        .devices(Selector::only(devices.first))
        .policy(Policy::default().no_fallback())
        .drill(Drill::times(FaultKind::CommandBuffer, 4))
        .build()
        .expect("it opens");
    let run = || footing.run("job", |step| Ok(E::on_device(step, &BATCH)));
    assert_eq!(run().expect_err("two faults, one retry").kind, FaultKind::CommandBuffer);
    assert_eq!(run().expect_err("two more").kind, FaultKind::CommandBuffer);
    assert!(run().is_ok(), "the fifth try works");
    assert_eq!(footing.health()[0].1, Health::Healthy);
    let gone: Footing<E> = Footing::builder()
        .devices(Selector::only(devices.first))
        .policy(Policy::default().no_fallback())
        .drill(Drill::once(FaultKind::DeviceLost, 0))
        .build()
        .expect("it opens");
    let run = || gone.run("job", |step| Ok(E::on_device(step, &BATCH)));
    assert!(run().is_err());
    assert_eq!(run().expect_err("it is gone").kind, FaultKind::DeviceLost);
}

/// A fault that names one of several devices that are used together costs that one alone, and the work goes on with the others.
pub fn work_that_is_laid_over_devices_goes_on_without_the_one_that_failed<E: Lab>(
    devices: Devices,
) {
    let Devices { first, second, .. } = devices;
    for (lost, left) in [(second, first), (first, second)] {
        let footing: Footing<E> = Footing::builder()
            .devices(Selector::Together { names: vec![first, second], parts: Some(vec![3, 5]) })
            .build()
            .expect("both open");
        assert_eq!(footing.together(), [first, second]);
        assert_eq!(footing.asked_parts(), Some(&[3, 5][..]));
        let run = || {
            let mut seen = None;
            let outcome = footing.run("job", |step| {
                if step.together().contains(&lost) {
                    let fault = Fault::new(FaultKind::DeviceLost, "part", "gone");
                    return Err(fault.on(lost.to_string()).into());
                }
                seen = Some((step.device_name(), step.together()));
                Ok(())
            });
            (outcome.expect("the other one is left"), seen)
        };
        let (outcome, seen) = run();
        assert_eq!(seen, Some((left, Vec::new())), "{lost} was lost");
        assert_eq!(outcome.rungs, [Rung::NextDevice]);
        let health = |name| {
            let mut all = footing.health().into_iter();
            all.find(|(other, _)| *other == name).map(|(_, health)| health)
        };
        assert_eq!((health(lost), health(left)), (Some(Health::Lost), Some(Health::Healthy)));
        assert_eq!((footing.together(), footing.asked_parts()), (vec![left], None));
        let (again, seen) = run();
        assert_eq!((again.faults.len(), seen), (0, Some((left, Vec::new()))), "it stays so");
    }
    // The first device of the list is where the work goes on, whatever the second one fails of.
    let footing: Footing<E> = Footing::builder()
        .devices(Selector::Together { names: vec![first, second], parts: None })
        .build()
        .expect("both open");
    let outcome = footing
        .run("job", |step| match step.together().contains(&second) {
            true => {
                let fault = Fault::new(FaultKind::CommandBuffer, "part", "reset");
                Err(fault.on(second.to_string()).into())
            }
            false => Ok(()),
        })
        .expect("the first one is left");
    assert_eq!(outcome.device, first);
    assert_eq!(footing.health()[0], (first, Health::Healthy));
}

/// What exceeds the budget is refused, and a reservation holds until it is dropped.
pub fn a_budget_refuses_before_anything_is_allocated<E: Lab>(devices: Devices) {
    let footing: Footing<E> = builder(devices).memory(1 << 50).build().expect("the chain opens");
    let fault = footing
        .run("huge", |step| {
            step.reserve(1 << 60)?;
            Ok(())
        })
        .expect_err("nothing has as much");
    assert_eq!(fault.kind, FaultKind::OutOfMemory);
    assert!(fault.device.is_some());
    let room = footing.room().expect("it is open").device;
    let held = footing.reserve("half", room / 2).expect("half of it is free");
    let left = footing.room().expect("it is open").device;
    assert!(left <= room - room / 4, "{room} before, {left} left");
    drop(held);
}

/// A fault that strikes all that is under way on a device is one fault.
pub fn one_fault_that_fails_several_threads_counts_once<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    let inside = AtomicU32::new(0);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let run = footing.run("job", |step| {
                    // Both have begun before either fails.
                    inside.fetch_add(1, Ordering::SeqCst);
                    while inside.load(Ordering::SeqCst) < 2 {
                        std::thread::yield_now();
                    }
                    if step.attempt() == 1 {
                        let fault = Fault::new(FaultKind::CommandBuffer, "job", "both are struck");
                        return Err(fault.into());
                    }
                    Ok(E::on_device(step, &BATCH))
                });
                assert_eq!(run.expect("it is retried").device, devices.first);
            });
        }
    });
    assert_eq!(footing.health()[0].1, Health::Healthy);
}

/// Eight threads on one footing, each with its own numbers.
pub fn threads_share_a_footing<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::default(), Journal::off());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let footing = &footing;
            scope.spawn(move || {
                for round in 0..4 {
                    let value = (thread * 4 + round) as f32;
                    let sum = footing
                        .run("double", |step| Ok(E::scaled(E::on_device(step, &[value]), 2.0)))
                        .unwrap_or_else(|fault| panic!("{fault}"));
                    assert_eq!(E::read(&sum.value), [2.0 * value]);
                }
            });
        }
    });
}

/// Closures are `FnMut`: they may count, or reuse a buffer.
pub fn work_may_change_what_it_captures<E: Lab>(devices: Devices) {
    let footing = footing::<E>(devices, Drill::times(FaultKind::OutOfMemory, 1), Journal::off());
    let mut tries = Vec::new();
    footing
        .run("job", |step| {
            tries.push(step.attempt());
            Ok(())
        })
        .expect("it is retried");
    assert_eq!(tries, [2], "the first try was struck before the work began");
}
