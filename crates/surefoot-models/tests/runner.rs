//! The runner: opened once, guarded, moved when a device fails, and never repeating what it
//! reported.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::recover::{Policy, Rung};
use surefoot::{Fault, FaultKind, Footing};
use surefoot_models::embed::Pooling;
use surefoot_models::folder::header::WeightDtype;
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens::Request;
use surefoot_models::runner::{AttemptEnd, AttemptStart, RunObserver, RunRequest, Runner};
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::{Logits, ModelError, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
const WORK: Work = Work { batch: 4, prompt: 8, new_tokens: 0, want: WANT };
/// A second name for the CPU: another device of the chain.
const SECOND: DeviceName = DeviceName { backend: Backend::Cpu, index: 1 };

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A footing on two devices, on which `drill` strikes.
fn footing(drill: &str, policy: Policy) -> Arc<Footing> {
    let mut builder =
        Footing::builder().devices(Selector::Chain(vec![SECOND, DeviceName::CPU])).policy(policy);
    if !drill.is_empty() {
        builder = builder.drill(drill.parse().unwrap());
    }
    Arc::new(builder.build().unwrap())
}

fn runner(drill: &str, policy: Policy) -> Runner {
    Runner::open(footing(drill, policy), &fixture("llama-tiny")).unwrap()
}

fn logits(runner: &Runner, request: &RunRequest) -> (Vec<f32>, DeviceName, u32, Placement) {
    let batch = TokenBatch::new(&[vec![5, 9, 17, 2], vec![40, 3]], 256).unwrap();
    let run = runner.run(request, |attempt| attempt.model().forward(&batch, WANT)).unwrap();
    (run.value.logits.unwrap().numbers, run.device, run.attempts, run.plan.mode)
}

fn device_error() -> ModelError {
    Fault::new(FaultKind::CommandBuffer, "block 1", "command buffer failed").into()
}

/// Remembers what attempts cost.
#[derive(Default)]
struct Costs(Mutex<Vec<(u64, u64)>>);

impl RunObserver for Costs {
    fn attempt_started(&self, start: &AttemptStart<'_>) {
        self.0.lock().unwrap().push((start.load_bytes, 0));
    }

    fn attempt_ended(&self, end: &AttemptEnd<'_>) {
        self.0.lock().unwrap().last_mut().unwrap().1 = end.reading.blocks;
    }
}

#[test]
fn weights_are_loaded_once_for_runs_that_need_no_more() {
    let costs = Arc::new(Costs::default());
    let runner = runner("", Policy::default()).observer(Arc::clone(&costs) as _);
    let request = RunRequest::new("forward", WORK);
    let first = logits(&runner, &request);
    let smaller = RunRequest::new("forward", Work { batch: 2, ..WORK });
    assert_eq!(logits(&runner, &smaller), first);
    // More than what memory was planned for is planned and loaded anew.
    logits(&runner, &RunRequest::new("forward", Work { batch: 8, ..WORK }));
    runner.unload();
    logits(&runner, &request);
    let costs = costs.0.lock().unwrap();
    let all = costs[0].0;
    assert!(all > 0);
    assert_eq!(*costs, [(all, 3), (0, 3), (all, 3), (all, 3)]);
}

#[test]
fn a_lost_device_moves_the_model_and_the_next_run_starts_where_it_is() {
    let expected = logits(&runner("", Policy::default()), &RunRequest::new("forward", WORK)).0;
    let runner = runner("device_lost:count=1", Policy::default());
    let request = RunRequest::new("forward", WORK);
    let (numbers, device, attempts, _) = logits(&runner, &request);
    assert_eq!((device, attempts), (DeviceName::CPU, 2));
    assert_eq!(numbers, expected);
    assert_eq!(runner.device(), Some(DeviceName::CPU));
    let (_, device, attempts, _) = logits(&runner, &request);
    assert_eq!((device, attempts), (DeviceName::CPU, 1));
}

#[test]
fn a_lack_of_memory_is_answered_by_streaming_and_the_model_goes_on_streaming() {
    let policy = Policy::default().forbid(Rung::Reclaim);
    let runner = runner("out_of_memory:count=1", policy);
    let request = RunRequest::new("forward", WORK);
    assert_eq!(logits(&runner, &request).3, Placement::Streamed);
    assert_eq!(logits(&runner, &request).3, Placement::Streamed);
}

#[test]
fn samples_are_taken_apart_before_weights_are_streamed() {
    let policy = Policy::default().forbid(Rung::Reclaim);
    let runner = runner("out_of_memory:count=2", policy);
    let request = RunRequest::new("forward", WORK).samples(8);
    let run = runner
        .run(&request, |attempt| {
            assert_eq!(attempt.samples_at_once(), 2);
            Ok(attempt.ranges().collect::<Vec<_>>())
        })
        .unwrap();
    assert_eq!(run.value, [0..2, 2..4, 4..6, 6..8]);
    assert_eq!(run.plan.mode, Placement::Resident);
}

#[test]
fn a_callers_mistake_is_returned_at_once() {
    let runner = runner("", Policy::default());
    let calls = Cell::new(0);
    let error = runner
        .run(&RunRequest::new("forward", WORK), |attempt| {
            calls.set(calls.get() + 1);
            let batch = TokenBatch::new(&[vec![999]], attempt.model().blueprint().vocab)?;
            attempt.model().forward(&batch, WANT)
        })
        .unwrap_err();
    assert!(matches!(error, ModelError::Request(_)), "{error}");
    assert_eq!(calls.get(), 1);
}

#[test]
fn a_fault_that_nothing_helps_against_is_returned_with_its_kind() {
    let runner = runner("device_lost:count=99", Policy::fail());
    let batch = TokenBatch::new(&[vec![1]], 256).unwrap();
    let run = runner
        .run(&RunRequest::new("forward", WORK), |attempt| attempt.model().forward(&batch, WANT));
    match run.unwrap_err() {
        ModelError::Fault(fault) => assert_eq!(fault.kind, FaultKind::DeviceLost),
        other => panic!("{other}"),
    }
}

#[test]
fn weights_that_two_tasks_failed_with_are_loaded_anew() {
    let costs = Arc::new(Costs::default());
    let runner = runner("", Policy::fail()).observer(Arc::clone(&costs) as _);
    let request = RunRequest::new("forward", WORK);
    for _ in 0..2 {
        // Says nothing against the device, so the next run starts there again.
        let numeric = Fault::new(FaultKind::Numeric, "forward", "the logits are NaN");
        assert!(runner.run(&request, |_| Err::<(), _>(numeric.clone().into())).is_err());
    }
    assert_eq!(runner.run(&request, |_| Ok(())).unwrap().device, SECOND);
    let loads: Vec<bool> = costs.0.lock().unwrap().iter().map(|(bytes, _)| *bytes > 0).collect();
    assert_eq!(loads, [true, false, true]);
}

#[test]
fn a_variant_is_for_its_own_run_alone() {
    let runner = runner("", Policy::default());
    let plain = RunRequest::new("forward", WORK);
    let (_, home, _, mode) = logits(&runner, &plain);
    assert_eq!((home, mode), (SECOND, Placement::Resident));
    let variant =
        plain.clone().streamed(true).on(Some(DeviceName::CPU)).compute(Some(WeightDtype::Bf16));
    let (rounded, device, _, mode) = logits(&runner, &variant);
    assert_eq!((device, mode), (DeviceName::CPU, Placement::Streamed));
    let (numbers, device, _, mode) = logits(&runner, &plain);
    assert_eq!((device, mode), (SECOND, Placement::Resident));
    assert_ne!(numbers, rounded);
}

fn generation(prompts: usize) -> Request {
    Request {
        prompts: (0..prompts).map(|number| vec![5, 9 + number as u32, 17]).collect(),
        max_tokens: 10,
        ends: Vec::new(),
        sampling: Sampling { temperature: 1.0, top_k: None, top_p: None, seed: 5 },
    }
}

#[test]
fn a_fault_in_the_middle_of_a_text_repeats_no_token_and_loses_none() {
    let texts = Texts::open(&fixture("llama-tiny"), 256).unwrap();
    let request = generation(3);
    let run = |fail_at: usize| {
        let runner = runner("", Policy::default());
        let (mut shown, mut tokens, mut calls) = (vec![String::new(); 3], vec![Vec::new(); 3], 0);
        let failed = Cell::new(false);
        let outcome = runner
            .generate(&texts, &request, &[], &[], &mut |new| {
                calls += 1;
                shown[new.prompt].push_str(new.text);
                tokens[new.prompt].extend(new.token);
                if calls == fail_at && !failed.replace(true) { Err(device_error()) } else { Ok(()) }
            })
            .unwrap();
        for ((completion, shown), tokens) in outcome.value.iter().zip(&shown).zip(&tokens) {
            assert_eq!((&completion.text, &completion.tokens), (shown, tokens));
        }
        let texts: Vec<String> = outcome.value.into_iter().map(|one| one.text).collect();
        (texts, outcome.attempts)
    };
    let (expected, attempts) = run(usize::MAX);
    assert_eq!(attempts, 1);
    for fail_at in [1, 2, 3, 14, 29] {
        let (texts, attempts) = run(fail_at);
        assert_eq!((texts, attempts), (expected.clone(), 2), "failed at {fail_at}");
    }
}

#[test]
fn another_process_goes_on_behind_the_tokens_of_the_first() {
    let texts = Texts::open(&fixture("llama-tiny"), 256).unwrap();
    let request = generation(1);
    let generate = |earlier: &[Vec<u32>]| {
        let shown = RefCell::new(String::new());
        let runner = runner("", Policy::default());
        let outcome = runner.generate(&texts, &request, &[], earlier, &mut |new| {
            shown.borrow_mut().push_str(new.text);
            Ok(())
        });
        (outcome.unwrap().value.remove(0), shown.into_inner())
    };
    let (whole, shown) = generate(&[]);
    assert_eq!(shown, whole.text);
    for known in [1, 4, 10] {
        let (again, rest) = generate(&[whole.tokens[..known].to_vec()]);
        assert_eq!((&again.text, &again.tokens), (&whole.text, &whole.tokens));
        assert!(whole.text.ends_with(&rest) && rest.len() < whole.text.len(), "{rest:?}");
    }
}

#[test]
fn texts_are_embedded_alike_in_one_batch_and_in_parts() {
    let folder = fixture("bert-tiny");
    let sequences: Vec<Vec<u32>> = (1..9).map(|length| vec![7; length]).collect();
    let embed = |drill: &str| {
        let policy = Policy::default().forbid(Rung::Reclaim);
        let runner = Runner::open(footing(drill, policy), &folder).unwrap();
        runner.embed(&sequences, Pooling::Mean).unwrap().value.numbers
    };
    let (whole, parts) = (embed(""), embed("out_of_memory:count=2"));
    assert_eq!(whole.len(), parts.len());
    assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-5));
}
