//! Right results under concurrency on the first GPU, in a small form: CI's is a software device.
//! `SUREFOOT_TEST_DEVICE=gpu` runs the races of whole processes, in `process.rs`, there too.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod race;

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Tensor};
use race::{Subject, race, two_models_at_once};
use surefoot::device::OpenDevice;
use surefoot_serve::lanes::Lanes;
use testkit::gpu;
use testkit::networks::Network;

/// The device to oneself: what is tested is many callers of one pool, not many pools.
fn alone() -> Option<(Arc<OpenDevice>, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Some((gpu()?, turn))
}

#[test]
fn each_caller_gets_its_own_numbers_from_every_model() {
    let Some((device, _turn)) = alone() else { return };
    let lanes = Lanes::new(Arc::clone(&device), 8);
    for subject in Subject::all(device.burn()) {
        let goldens = subject.goldens(device.burn());
        race(&subject, &goldens, &lanes, 8, 4);
        race(&subject, &goldens, &lanes, 32, 1);
    }
    assert_eq!(lanes.compiled(), 4);
    assert_eq!((lanes.statistics().leased, lanes.statistics().waiting), (0, 0));
}

#[test]
fn two_models_share_the_lanes() {
    let Some((device, _turn)) = alone() else { return };
    let lanes = Lanes::fixed(Arc::clone(&device), 4);
    two_models_at_once(&lanes, [&Subject::mlp(device.burn()), &Subject::bert(device.burn())], 3);
    assert_eq!(lanes.compiled(), 2);
}

#[test]
fn on_every_lane_the_numbers_are_those_of_the_cpu() {
    let Some((device, _turn)) = alone() else { return };
    let host = Device::flex();
    let lanes = Lanes::<&str>::fixed(Arc::clone(&device), 3);
    for network in [Network::mlp(&host), Network::conv(&host), Network::block(&host)] {
        let input = network.input(0);
        let expected = network.forward(&input, &host);
        let (there, input) = (Arc::new(network.to(device.burn())), Arc::new(input));
        for _ in 0..3 {
            let (network, input) = (Arc::clone(&there), Arc::clone(&input));
            let forward =
                move |device: &Device| Ok::<_, Infallible>(network.forward(&input, device));
            let found = lanes.run(&there.name(), forward).unwrap();
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0.0, f32::max);
            assert!(worst <= 1e-4, "{} differs by {worst}", there.name());
        }
    }
}

#[test]
fn work_that_is_dropped_in_flight_and_panics_cost_the_others_nothing() {
    let Some((device, _turn)) = alone() else { return };
    let lanes = Lanes::fixed(Arc::clone(&device), 2);
    let subject = Subject::mlp(device.burn());
    let goldens = subject.goldens(device.burn());
    std::thread::scope(|scope| {
        for caller in 0..12 {
            let (lanes, subject, goldens) = (&lanes, &subject, &goldens);
            scope.spawn(move || match caller % 4 {
                // Nobody reads the product: it is dropped while the device computes it.
                0 => drop(lanes.run(&("dropped", 0), |device| {
                    let x = Tensor::<2>::ones([64, 64], device);
                    drop(x.clone().matmul(x));
                    Ok::<_, Infallible>(())
                })),
                1 => {
                    let run = || {
                        lanes.run(&("panics", 0), |device| {
                            let x = Tensor::<2>::ones([2, 3], device);
                            Ok::<_, Infallible>(x.clone().matmul(x))
                        })
                    };
                    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
                }
                _ => (0..2).for_each(|_| subject.check(caller, lanes, goldens)),
            });
        }
    });
    assert_eq!((lanes.statistics().leased, lanes.statistics().waiting), (0, 0));
}
