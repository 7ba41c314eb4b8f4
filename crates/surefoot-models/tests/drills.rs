//! Faults inside a model's work: while weights are read, in a block, between two parts and when all
//! is done. What must happen is written in the tables here.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use surefoot::Footing;
use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::recover::Rung::{self, NextDevice, Reclaim, Split, Stream};
use surefoot_models::embed::Pooling;
use surefoot_models::runner::{RunRequest, Runner};
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
const WORK: Work = Work { batch: 2, prompt: 4, new_tokens: 0, want: WANT };
/// A second name for the CPU: another device of the chain, whose blocks can go to the CPU alone.
const SECOND: DeviceName = DeviceName { backend: Backend::Cpu, index: 1 };

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn runner(model: &str, drill: &str) -> Runner {
    let mut builder = Footing::builder().devices(Selector::only(SECOND));
    if !drill.is_empty() {
        builder = builder.drill(drill.parse().unwrap());
    }
    Runner::open(Arc::new(builder.build().unwrap()), &fixture(model)).unwrap()
}

/// The logits of a run, the rungs that it took, and how often the drills struck.
fn forward(drill: &str, streamed: bool) -> (Vec<f32>, Vec<Rung>, u64) {
    let runner = runner("llama-tiny", drill);
    let batch = TokenBatch::new(&[vec![5, 9, 17, 2], vec![40, 3]], 256).unwrap();
    let request = RunRequest::new("forward", WORK).streamed(streamed);
    let run = runner.run(&request, |attempt| attempt.model().forward(&batch, WANT)).unwrap();
    let struck = runner.footing().drill().strikes().iter().map(|rule| rule.struck).sum();
    (run.value.logits.unwrap().numbers, run.rungs, struck)
}

fn assert_close(got: &[f32], want: &[f32], drill: &str) {
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && worst <= 1e-4, "{drill}: differs by {worst}");
}

/// Runs each drill; it must strike so often, and the whole run take these rungs.
fn check(streamed: bool, table: &[(&str, u64, &[Rung])]) {
    let (expected, rungs, _) = forward("", false);
    assert!(rungs.is_empty());
    for &(drill, strikes, rungs) in table {
        let (numbers, taken, struck) = forward(drill, streamed);
        assert_close(&numbers, &expected, drill);
        assert_eq!((taken.as_slice(), struck), (rungs, strikes), "{drill}, streamed: {streamed}");
    }
}

#[test]
fn a_fault_at_any_moment_of_a_forward_is_answered_and_the_result_stays_the_same() {
    for streamed in [false, true] {
        check(
            streamed,
            &[
                ("out_of_memory:op=forward", 1, &[Reclaim]),
                ("device_lost:op=forward", 1, &[NextDevice]),
                ("out_of_memory:op=forward,at=after", 1, &[Reclaim]),
                // A block that fails is run again, where it is or on the CPU; nothing else is repeated.
                ("out_of_memory:op=forward,at=during,point=operation", 1, &[]),
                ("command_buffer:op=forward,at=during,point=operation,nth=20", 1, &[]),
                ("unsupported_op:op=block 1", 1, &[]),
                ("unsupported_op:op=block 1,at=during,nth=4", 1, &[]),
                ("unsupported_op:op=head,at=after", 1, &[]),
                // One that fails on the CPU too fails the run, which goes on with the next device.
                ("unsupported_op:op=block 2,count=2", 2, &[NextDevice]),
                ("kernel_compile:op=head,count=2", 2, &[NextDevice]),
            ],
        );
    }
}

#[test]
fn a_fault_while_weights_are_loaded_is_a_fault_of_the_run() {
    check(
        false,
        &[
            ("command_buffer:op=forward,at=during,point=read", 1, &[Reclaim]),
            ("out_of_memory:op=forward,at=during,point=allocation,nth=3", 1, &[Reclaim]),
            ("out_of_memory:op=forward,at=during,point=read,nth=2,count=2", 2, &[Reclaim, Stream]),
            ("device_lost:op=forward,at=during,point=read", 1, &[NextDevice]),
        ],
    );
}

#[test]
fn a_fault_in_the_thread_that_reads_ahead_fails_the_block_that_needs_the_piece() {
    check(
        true,
        &[
            ("command_buffer:op=forward,at=during,point=read", 1, &[]),
            ("out_of_memory:op=forward,at=during,point=read,nth=4", 1, &[]),
            ("out_of_memory:op=forward,at=during,point=allocation,nth=9", 1, &[]),
        ],
    );
}

#[test]
fn a_block_that_its_device_can_not_run_is_reported_as_run_by_the_cpu() {
    let drill = format!("unsupported_op:op=block 1,at=during,device={SECOND},count=9");
    let runner = runner("llama-tiny", &drill);
    let batch = TokenBatch::new(&[vec![5, 9]], 256).unwrap();
    let request = RunRequest::new("forward", WORK);
    let run = runner.run(&request, |attempt| attempt.model().forward(&batch, WANT)).unwrap();
    let moved: Vec<&str> = run.on_cpu.iter().map(|part| part.name.as_str()).collect();
    assert_eq!((moved, run.device), (vec!["block 1"], SECOND));
}

#[test]
fn a_fault_between_two_parts_splits_further_and_every_text_has_its_vector() {
    let sequences: Vec<Vec<u32>> = (1..9).map(|length| vec![7; length]).collect();
    let embed = |drill: &str| {
        let runner = runner("bert-tiny", drill);
        let run = runner.embed(&sequences, Pooling::Mean).unwrap();
        let struck: u64 = runner.footing().drill().strikes().iter().map(|rule| rule.struck).sum();
        (run.value.numbers, run.rungs, struck)
    };
    let (expected, ..) = embed("");
    let first = "out_of_memory:op=embed,count=2";
    for (second, rungs) in [
        ("out_of_memory", &[Reclaim, Split, Split][..]),
        ("device_lost", &[Reclaim, Split, NextDevice][..]),
        ("command_buffer", &[Reclaim, Split, NextDevice][..]),
    ] {
        let drill = format!("{first};{second}:op=embed,at=between-parts");
        let (numbers, taken, struck) = embed(&drill);
        assert_close(&numbers, &expected, &drill);
        assert_eq!((taken.as_slice(), struck), (rungs, 3), "{drill}");
    }
}
