//! Mixed precision, loss scaling, and numbers that are none.

use crate::harness::{Trial, undisturbed};
use surefoot::FaultKind;
use surefoot_train::TrainError;

#[test]
fn half_precision_trains_as_well_as_full() {
    let expected = undisturbed();
    for precision in ["bf16", "fp16"] {
        let folder = tempfile::tempdir().unwrap();
        let trial = Trial::new(folder.path()).set("precision", precision);
        let (report, _) = trial.run().unwrap();
        assert_eq!(report.precision, precision);
        assert!((report.test_loss - expected).abs() < 0.03, "{precision} {}", report.test_loss);
        assert_ne!(report.test_loss, expected, "{precision} was not used");
        assert_eq!(report.skipped_steps, 0, "{precision}");
    }
}

#[test]
fn a_run_that_keeps_diverging_stops_and_names_the_first_bad_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial::new(folder.path())
        .set("optimizer", "{kind: sgd, lr: 1e30, schedule: constant}")
        .set("clip_norm", "null")
        .set("steps", "40");
    let Err(TrainError::Fault { fault, step, .. }) = trial.run() else { panic!() };
    assert_eq!(fault.kind, FaultKind::Numeric);
    assert!(fault.root_cause().contains("8 steps in a row"), "{fault}");
    let named = ["the loss", "the weight", "the gradient"];
    assert!(named.iter().any(|name| fault.root_cause().contains(name)), "{fault}");
    assert!(fault.advice[0].contains("optimizer.lr"));
    assert!(step < 40);
}

#[test]
fn in_fp16_a_run_stops_only_when_the_loss_scale_cannot_be_to_blame() {
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial::new(folder.path())
        .set("optimizer", "{kind: sgd, lr: 1e30, schedule: constant}")
        .set("clip_norm", "null")
        .set("precision", "fp16")
        .set("steps", "40");
    let Err(TrainError::Fault { fault, .. }) = trial.run() else { panic!() };
    // The scale is halved from 65536 to 1 in 16 steps; at 1 it has nothing to do with it.
    assert!(fault.root_cause().contains("17 steps in a row"), "{fault}");
}
