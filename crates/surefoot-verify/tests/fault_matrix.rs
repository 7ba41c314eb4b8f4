//! Every kind of fault at every moment of a comparison's passes, on the CPU or on the device that
//! `SUREFOOT_TEST_DEVICE` names: the verdict stays the same, or the comparison ends with the fault
//! and gives none.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::journal::{EventKind, Journal};
use surefoot::recover::Drill;
use surefoot::{Fault, Footing};
use surefoot_models::ModelError;
use surefoot_models::runner::Runner;
use surefoot_verify::VerifyError;
use surefoot_verify::challenge::ChallengeSet;
use surefoot_verify::decision::{DecisionRule, Verdict};
use surefoot_verify::fingerprint::{Fingerprint, SketchPolicy};
use surefoot_verify::site::SiteSelection;
use surefoot_verify::transcript::Transcript;
use surefoot_verify::verifier::Verifier;
use testkit::chain_under_test;
use testkit::workload_matrix::{Ended, strike_between_parts, strike_in_a_block, strike_once};

/// The operation of a comparison's passes.
const OPERATION: &str = "fingerprint";
const POLICY: SketchPolicy = SketchPolicy { bits: 8192, sites: SiteSelection::All };

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/llama-tiny")
}

fn verifier(devices: &[DeviceName], drill: &Drill, journal: &Journal) -> Verifier<'static> {
    verifier_on(Selector::Chain(devices.to_vec()), drill, journal)
}

fn verifier_on(devices: Selector, drill: &Drill, journal: &Journal) -> Verifier<'static> {
    let footing = Footing::builder()
        .devices(devices)
        .drill(drill.clone())
        .journal(journal.clone())
        .build()
        .unwrap();
    let footing = Arc::new(footing);
    Verifier::new(move |folder| Runner::open(Arc::clone(&footing), folder), |_| {})
}

fn ended(drill: &Drill, text: &str, reference: &Fingerprint, set: &ChallengeSet) -> Ended {
    let journal = Journal::builder().ring(512).build();
    let verifier = verifier(&chain_under_test(), drill, &journal);
    match verifier.candidate(&model(), set, POLICY) {
        Err(VerifyError::Model(ModelError::Fault(fault))) => return Err(*fault),
        Err(other) => panic!("{text}: {other}"),
        Ok(candidate) => {
            let rule = DecisionRule::default();
            let transcript = Transcript::of_models(reference.clone(), candidate, rule).unwrap();
            assert_eq!(transcript.comparison.decision.verdict, Verdict::Same, "{text}");
        }
    }
    let events = journal.recent();
    let of_passes = events.iter().filter(|event| event.op == OPERATION);
    let rungs = of_passes.filter(|event| event.kind == EventKind::Rung);
    Ok(rungs.map(|event| event.recovery.as_ref().unwrap().parse().unwrap()).collect())
}

#[test]
fn every_fault_at_every_moment_of_a_comparison() {
    let set = ChallengeSet::keyed([7; 32], "faults", 256, 20, 6).unwrap();
    let undisturbed = verifier(&[DeviceName::CPU], &Drill::default(), &Journal::off());
    let reference = undisturbed.reference(&model(), &set, POLICY, None).unwrap();
    let ended = |drill: &Drill, text: &str| ended(drill, text, &reference, &set);
    strike_once(OPERATION, &["at=before", "at=during,point=read", "at=after"], ended);
    strike_in_a_block(OPERATION, "point=operation,nth=2", ended);
    strike_between_parts(OPERATION, 0, ended);
}

/// The whole of `compare`: the reference with its noise, then the candidate. A pass that fails for
/// good gives a fault and no verdict.
#[test]
fn a_fault_in_any_pass_of_the_reference_ends_without_a_verdict_or_changes_nothing() {
    let set = ChallengeSet::keyed([7; 32], "faults", 256, 20, 6).unwrap();
    let make = |drill: &str| -> Result<Fingerprint, Fault> {
        let drill = if drill.is_empty() { Drill::default() } else { drill.parse().unwrap() };
        let verifier = verifier(&chain_under_test(), &drill, &Journal::off());
        let made = verifier.reference(&model(), &set, POLICY, None);
        assert!(drill.strikes().iter().all(|rule| rule.struck > 0), "{:?}", drill.strikes());
        made.map_err(|error| match error {
            VerifyError::Model(ModelError::Fault(fault)) => *fault,
            other => panic!("{other}"),
        })
    };
    let expected = make("").unwrap();
    // The plain pass is run 0; the passes that measure noise follow.
    for step in [0, 1, 4] {
        let struck = make(&format!("command_buffer:op={OPERATION},at=after,step={step}")).unwrap();
        assert_eq!(struck.root, expected.root, "{step}");
        let fault = make(&format!("numeric:op={OPERATION},at=after,step={step}")).unwrap_err();
        assert_eq!(fault.kind.as_str(), "numeric", "{step}");
    }
}

/// Blocks that another device computes may deviate as that one does: a fingerprint names all of them.
#[test]
fn a_fingerprint_names_every_device_that_the_blocks_were_laid_over() {
    let set = ChallengeSet::keyed([7; 32], "devices", 256, 20, 2).unwrap();
    let other = DeviceName { backend: Backend::Cpu, index: 1 };
    for (parts, expected) in [([1, 2], "cpu:1+cpu"), ([0, 3], "cpu"), ([3, 0], "cpu:1")] {
        let devices =
            Selector::Together { names: vec![other, DeviceName::CPU], parts: Some(parts.to_vec()) };
        let verifier = verifier_on(devices, &Drill::default(), &Journal::off());
        let fingerprint = verifier.candidate(&model(), &set, POLICY).unwrap();
        assert_eq!(fingerprint.run.device, expected, "{parts:?}");
    }
}
