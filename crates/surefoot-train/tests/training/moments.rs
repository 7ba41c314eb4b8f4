//! A fault at any moment of a step, in its forward pass, its backward pass and its update, leaves
//! the run as if nothing had happened.

use crate::harness::{Trial, undisturbed};

/// Splitting changes the order in which floats are added, and nothing else.
const TOLERANCE: f64 = 1e-4;

/// The test loss of a run with this drill, and how many faults there were.
fn drilled(drill: &str) -> (f64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial { drill, ..Trial::new(folder.path()) };
    let (report, _) = trial.run().unwrap_or_else(|error| panic!("{drill}: {error}"));
    assert_eq!(report.steps, 12, "{drill}");
    (report.test_loss, report.faults as u64)
}

#[test]
fn a_fault_at_any_operation_of_a_step_changes_nothing() {
    let expected = undisturbed();
    let mut struck = 0;
    // A step's operations, one after the other, until there are no more.
    for nth in 1..100 {
        let drill =
            format!("command_buffer:at=during,point=operation,nth={nth},step=5,op=train step");
        let (loss, faults) = drilled(&drill);
        assert_eq!(loss, expected, "{drill}");
        if faults == 0 {
            break;
        }
        struck += 1;
    }
    // Two layers and the loss, forward and backward, and the update.
    assert!(struck >= 7, "{struck} operations were struck");
}

#[test]
fn a_step_that_is_lost_after_it_was_done_is_done_again_once() {
    let drill = "command_buffer:at=after,step=5,op=train step";
    assert_eq!(drilled(drill), (undisturbed(), 1));
}

#[test]
fn a_fault_between_two_parts_of_a_step_loses_no_gradient() {
    // Reclaiming does not help, two parts do; then a fault strikes between the two.
    let drill = "out_of_memory:step=5,count=2,op=train step;\
                 out_of_memory:at=between-parts,step=5,op=train step";
    let (loss, faults) = drilled(drill);
    assert_eq!(faults, 3);
    assert!((loss - undisturbed()).abs() < TOLERANCE, "{loss}");
}
