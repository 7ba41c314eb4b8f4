//! Right results under concurrency, on the CPU; `SUREFOOT_TEST_DEVICE` names another device.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod race;

use std::sync::Arc;
use std::time::{Duration, Instant};

use race::{INPUTS, Subject, race, two_models_at_once};
use surefoot::device::{OpenDevice, open};
use surefoot_serve::lanes::{Lanes, MOST_LANES};
use testkit::cpu;

/// How long the soak lasts, in seconds.
const SOAK: &str = "SUREFOOT_SOAK_SECONDS";

fn device() -> Arc<OpenDevice> {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => open(name.parse().unwrap()).unwrap(),
        Err(_) => cpu().unwrap(),
    }
}

fn lanes() -> Lanes<race::Key> {
    Lanes::new(device(), MOST_LANES)
}

#[test]
fn each_caller_gets_its_own_numbers_from_every_model() {
    let lanes = lanes();
    for subject in Subject::all(lanes.device().burn()) {
        let goldens = subject.goldens(lanes.device().burn());
        for (threads, rounds) in [(8, 40), (16, 20), (64, 8)] {
            race(&subject, &goldens, &lanes, threads, rounds);
        }
    }
    assert_eq!(lanes.compiled(), 4);
    assert_eq!((lanes.statistics().leased, lanes.statistics().waiting), (0, 0));
}

#[test]
fn two_models_share_the_lanes() {
    let lanes = lanes();
    let device = lanes.device().burn().clone();
    two_models_at_once(&lanes, [&Subject::mlp(&device), &Subject::bert(&device)], 40);
    two_models_at_once(&lanes, [&Subject::block(&device), &Subject::conv(&device)], 40);
    assert_eq!(lanes.compiled(), 4);
}

#[test]
fn threads_that_come_and_go_find_the_lanes_as_they_were() {
    let lanes = Lanes::fixed(device(), 3);
    let subject = Subject::block(lanes.device().burn());
    let goldens = subject.goldens(lanes.device().burn());
    // Each wave of 64 threads lives for one forward.
    (0..20).for_each(|_| race(&subject, &goldens, &lanes, 64, 1));
    assert_eq!(lanes.statistics().greatest_leased, 3);
}

#[test]
fn nothing_goes_wrong_in_the_long_run() {
    let seconds = std::env::var(SOAK).map_or(10.0, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let lanes = Arc::new(lanes());
    let device = lanes.device();
    let subjects = Subject::all(device.burn());
    let goldens: Vec<_> = subjects.iter().map(|subject| subject.goldens(device.burn())).collect();
    let mut after_a_while = None;
    let (mut waves, mut forwards) = (0, 0);
    while Instant::now() < until {
        waves += 1;
        // As many as it happens to be, a part of them failing, a part giving up.
        let threads = [1, 5, 24, 64][waves % 4];
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (lanes, subjects, goldens) = (&lanes, &subjects, &goldens);
                scope.spawn(move || {
                    let nth = (waves * 13 + thread) % INPUTS;
                    let (subject, goldens) = (&subjects[nth % 4], &goldens[nth % 4]);
                    let soon = Instant::now() + Duration::from_millis(nth as u64 % 5);
                    let fails = |_: &_| Err::<(), _>("on purpose");
                    match nth % 5 {
                        0 => drop(lanes.run(&subject.key(), fails).unwrap_err()),
                        1 => drop(lanes.run_until(soon, &subject.key(), fails)),
                        _ => (0..4).for_each(|_| subject.check(nth, lanes, goldens)),
                    }
                });
            }
        });
        forwards += threads * 4;
        if waves == 50 {
            after_a_while = Some(device.memory_in_use());
        }
    }
    assert_eq!((lanes.statistics().leased, lanes.statistics().waiting), (0, 0));
    if let Some(before) = after_a_while {
        let (now, slack) = (device.memory_in_use(), 64 << 20);
        assert!(now < before + before / 4 + slack, "{before} bytes, then {now}, {forwards} runs");
    }
}
