//! Every kind of fault at every moment of a forward pass, with weights in memory and streamed, on
//! the CPU or on the device that `SUREFOOT_TEST_DEVICE` names.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::sync::Arc;

use surefoot::Footing;
use surefoot::device::Selector;
use surefoot::recover::{Drill, Rung};
use surefoot_models::runner::{RunRequest, Runner};
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, ModelError, TokenBatch, Want};
use testkit::chain_under_test;
use testkit::workload_matrix::{Ended, strike_between_parts, strike_in_a_block, strike_once};

const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
const WORK: Work = Work { batch: 4, prompt: 4, new_tokens: 0, want: WANT };
/// Devices add floats up in different orders.
const TOLERANCE: f32 = 1e-3;

/// The logits of four sequences, in as many passes as the attempt has parts; and the rungs.
fn forward(drill: &Drill, streamed: bool) -> Result<(Vec<f32>, Vec<Rung>), ModelError> {
    let footing = Footing::builder()
        .devices(Selector::Chain(chain_under_test()))
        .drill(drill.clone())
        .build()
        .unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
    let runner = Runner::open(Arc::new(footing), &model).unwrap();
    let sequences: Vec<Vec<u32>> = (0..4).map(|first| vec![first, 9, 17, 2]).collect();
    let request = RunRequest::new("forward", WORK).samples(4).streamed(streamed);
    let run = runner.run(&request, |attempt| {
        let mut numbers = Vec::new();
        for range in attempt.ranges() {
            let batch = TokenBatch::new(&sequences[range], 256)?;
            numbers.extend(attempt.model().forward(&batch, WANT)?.logits.unwrap().numbers);
        }
        Ok(numbers)
    })?;
    Ok((run.value, run.rungs))
}

fn ended(drill: &Drill, text: &str, streamed: bool, expected: &[f32]) -> Ended {
    match forward(drill, streamed) {
        Ok((numbers, rungs)) => {
            let gaps = numbers.iter().zip(expected).map(|(a, b)| (a - b).abs());
            let worst = gaps.fold(0.0, f32::max);
            assert_eq!(numbers.len(), expected.len(), "{text}");
            assert!(worst < TOLERANCE, "{text}, streamed: {streamed}: differs by {worst}");
            Ok(rungs)
        }
        Err(ModelError::Fault(fault)) => Err(*fault),
        Err(other) => panic!("{text}: {other}"),
    }
}

#[test]
fn every_fault_at_every_moment_of_a_forward_with_weights_in_memory() {
    let (expected, _) = forward(&Drill::default(), false).unwrap();
    let ended = |drill: &Drill, text: &str| ended(drill, text, false, &expected);
    // Weights are read before the first block runs.
    let moments =
        ["at=before", "at=during,point=read", "at=during,point=allocation,nth=3", "at=after"];
    strike_once("forward", &moments, ended);
    strike_in_a_block("forward", "point=operation,nth=2", ended);
    strike_between_parts("forward", 0, ended);
}

#[test]
fn every_fault_at_every_moment_of_a_streamed_forward() {
    let (expected, _) = forward(&Drill::default(), false).unwrap();
    let ended = |drill: &Drill, text: &str| ended(drill, text, true, &expected);
    strike_once("forward", &["at=before", "at=after"], ended);
    // The thread that reads ahead fails the block that needs the piece.
    strike_in_a_block("forward", "point=operation,nth=2", ended);
    strike_in_a_block("forward", "point=read,nth=3", ended);
    strike_between_parts("forward", 0, ended);
}
