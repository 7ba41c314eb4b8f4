//! Every kind of fault at every moment of a training step, on the CPU or on the device that
//! `SUREFOOT_TEST_DEVICE` names. A run that is recovered, or that is resumed after it stopped, ends
//! with the loss of the undisturbed run.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[path = "training/harness.rs"]
#[allow(dead_code, reason = "the other tests use the rest of it")]
mod harness;

use harness::Trial;
use surefoot::Fault;
use surefoot::recover::{Drill, Rung};
use surefoot_train::{TrainError, TrainEvent};
use testkit::chain_under_test;
use testkit::workload_matrix::{Ended, strike_between_parts, strike_once};

const TINY: &str = "{data: {kind: digits}, model: {kind: mlp, hidden: [8]}, batch_size: 16, \
                    steps: 3, workers: 1, clip_norm: 1.0}";
/// Devices, and batches in parts, add floats up in different orders.
const TOLERANCE: f64 = 1e-3;

/// The test loss of three steps, and what was told on the way.
fn train(drill: &Drill) -> (Result<f64, (Fault, f64)>, Vec<TrainEvent>) {
    let folder = tempfile::tempdir().unwrap();
    let trial = || Trial { config: TINY, devices: chain_under_test(), ..Trial::new(folder.path()) };
    match (Trial { counted_drill: Some(drill.clone()), ..trial() }).run() {
        Ok((report, news)) => {
            assert_eq!(report.steps, 3);
            (Ok(report.test_loss), news)
        }
        Err(TrainError::Fault { fault, saved, .. }) => {
            let resumed = Trial { resume: saved.as_deref(), ..trial() }.run().unwrap().0;
            assert_eq!(resumed.steps, 3);
            (Err((*fault, resumed.test_loss)), Vec::new())
        }
        Err(other) => panic!("{other}"),
    }
}

fn ended(drill: &Drill, text: &str, expected: f64) -> Ended {
    let check = |loss: f64| assert!((loss - expected).abs() < TOLERANCE, "{text}: {loss}");
    let (ended, news) = train(drill);
    let loss = match ended {
        Ok(loss) => loss,
        Err((fault, resumed)) => {
            check(resumed);
            return Err(fault);
        }
    };
    check(loss);
    // A state that is lost ends its step with the fault; the run goes back to the last copy of it.
    let mut faults = news.iter().filter_map(|news| match news {
        TrainEvent::Fault(fault) => Some(fault),
        _ => None,
    });
    if news.iter().any(|news| matches!(news, TrainEvent::Rewound { .. })) {
        let fault = faults.next_back().unwrap();
        return Err(Fault::new(fault.kind.parse().unwrap(), "train step", fault.message.clone()));
    }
    let rungs = news.iter().filter_map(|news| match news {
        TrainEvent::Recovery { rung, .. } => Some(rung.parse::<Rung>().unwrap()),
        _ => None,
    });
    Ok(rungs.collect())
}

#[test]
fn every_fault_at_every_moment_of_a_training_step() {
    let expected = train(&Drill::default()).0.map_err(|(fault, _)| fault).unwrap();
    // The third operation is the loss, behind the two layers of the forward pass. The first read
    // comes after the backward pass: there a GPU's errors of both passes show.
    let moments = [
        "step=1,at=before",
        "step=1,at=during,point=operation,nth=3",
        "step=1,at=during,point=read,nth=1",
        "step=1,at=after",
    ];
    strike_once("train step", &moments, |drill, text| ended(drill, text, expected));
    strike_between_parts("train step", 1, |drill, text| ended(drill, text, expected));
}
