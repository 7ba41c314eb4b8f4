//! A block that its device can't run runs on the CPU, with its weights and its cache, and the
//! result is the same. `SUREFOOT_TEST_DEVICE` names another device than a second name for the CPU.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::journal::{EventKind, Journal};
use surefoot::recover::Policy;
use surefoot::{FaultKind, Footing};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::tokens::Request;
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, Model, ModelError, Opened, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::All, hidden: false, last_hidden: false };

fn home() -> DeviceName {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => name.parse().unwrap(),
        Err(_) => DeviceName { backend: Backend::Cpu, index: 1 },
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A footing on which `part` always fails at home with `kind`.
fn footing(kind: &str, part: &str, policy: Policy) -> (Arc<Footing>, Journal) {
    let journal = Journal::builder().ring(512).build();
    let drill = format!("{kind}:op={part},device={},count=999", home());
    let footing = Footing::builder()
        .devices(Selector::only(home()))
        .policy(policy)
        .drill(drill.parse().unwrap())
        .journal(journal.clone())
        .build()
        .unwrap();
    (Arc::new(footing), journal)
}

/// A model at home, so much of it resident.
fn open(name: &str, share: f64) -> Model {
    let opened = Opened::new(&fixture(name)).unwrap();
    let work = Work { batch: 2, prompt: 12, new_tokens: 8, want: WANT };
    let plan = opened.plan_with_share(&work, share);
    let device = surefoot::device::open(home()).unwrap();
    opened.load(&plan, device.burn(), Arc::default()).unwrap()
}

/// Without the two rows of padding before the second text, which hold what no token sees and each device leaves there.
fn logits(model: &Model) -> Result<Vec<f32>, ModelError> {
    let batch = TokenBatch::new(&[vec![5, 9, 17, 2], vec![40, 3]], 256).unwrap();
    let numbers = model.forward(&batch, WANT)?.logits.unwrap().numbers;
    let rows = numbers.chunks_exact(numbers.len() / 8).enumerate();
    let of_tokens = rows.filter(|(row, _)| !(4..6).contains(row));
    Ok(of_tokens.flat_map(|(_, numbers)| numbers).copied().collect())
}

fn generated(model: &Model) -> Vec<Vec<u32>> {
    let request = Request {
        prompts: vec![vec![5, 9, 17, 2], vec![40, 3]],
        max_tokens: 8,
        ends: Vec::new(),
        sampling: Sampling::GREEDY,
    };
    let all = model.generate(&request, |_, _| ControlFlow::Continue(())).unwrap();
    all.into_iter().map(|one| one.tokens).collect()
}

fn on_cpu(model: &Model) -> Vec<String> {
    model.on_cpu().into_iter().map(|part| part.name).collect()
}

fn assert_close(got: &[f32], want: &[f32]) {
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && worst <= 1e-4, "differs by {worst}");
}

#[test]
fn a_block_that_its_device_cannot_run_runs_on_the_cpu_in_every_mode() {
    for name in ["llama-tiny", "gpt2-tiny", "neox-tiny"] {
        let expected = logits(&open(name, 1.0)).unwrap();
        for share in [1.0, 0.5, 0.0] {
            let (footing, journal) = footing("unsupported_op", "block 1", Policy::default());
            let model = open(name, share).guarded(footing, home());
            for _ in 0..3 {
                assert_close(&logits(&model).unwrap(), &expected);
            }
            assert_eq!(on_cpu(&model), ["block 1"], "{name}");
            let events = journal.recent();
            let of = |kind| events.iter().filter(move |event| event.kind == kind);
            assert_eq!(of(EventKind::Fault).count(), 1, "it was found out once");
            let rungs: Vec<_> = of(EventKind::Rung).map(|event| event.recovery.clone()).collect();
            assert_eq!(rungs, [Some("cpu_segment".into())]);
        }
    }
}

#[test]
fn a_block_without_memory_and_the_head_go_too_and_the_tokens_stay_the_same() {
    let expected = generated(&open("llama-tiny", 1.0));
    for (kind, part) in [("out_of_memory", "block 0"), ("kernel_compile", "head")] {
        for share in [1.0, 0.3, 0.0] {
            let (footing, _) = footing(kind, part, Policy::default());
            let model = open("llama-tiny", share).guarded(footing, home());
            assert_eq!(generated(&model), expected, "{kind} {part} {share}");
            assert_eq!(on_cpu(&model), [part]);
        }
    }
}

#[test]
fn what_the_policy_forbids_is_a_fault_with_its_kind() {
    let (footing, _) = footing("unsupported_op", "block 2", Policy::default().no_fallback());
    let model = open("llama-tiny", 0.5).guarded(footing, home());
    let Err(ModelError::Fault(fault)) = logits(&model) else { panic!("it should have failed") };
    assert_eq!((fault.kind, fault.operation.as_ref()), (FaultKind::UnsupportedOp, "block 2"));
    assert!(model.on_cpu().is_empty());
}

#[test]
fn a_guard_that_nothing_happens_to_changes_nothing_and_tells_nothing() {
    let (footing, journal) = footing("unsupported_op", "block 9", Policy::default());
    let before = journal.recent().len();
    let model = open("qwen2-tiny", 0.5).guarded(footing, home());
    assert_close(&logits(&model).unwrap(), &logits(&open("qwen2-tiny", 1.0)).unwrap());
    assert_eq!(journal.recent().len(), before);
}
