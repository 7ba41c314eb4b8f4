//! A model that is laid over two devices gives what it gives on one; when one of them is lost its blocks move to the other, and
//! the result is the same. `SUREFOOT_TEST_DEVICE` names another device than a second name for the CPU.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::journal::{Event, EventKind, Journal};
use surefoot::recover::Rung;
use surefoot::{FaultKind, Footing};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::tokens::{Request, WANT};
use surefoot_models::runner::{RunOutcome, RunRequest, Runner};
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, ModelError, TokenBatch, Want};

fn other() -> DeviceName {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => name.parse().unwrap(),
        Err(_) => DeviceName { backend: Backend::Cpu, index: 1 },
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A runner of a model whose first blocks are on the other device and whose last ones are on the CPU.
fn runner(model: &str, parts: Option<&[usize]>, drill: &str) -> (Runner, Journal) {
    let journal = Journal::builder().ring(512).build();
    let selector = match parts {
        Some(parts) => Selector::Together {
            names: vec![other(), DeviceName::CPU],
            parts: Some(parts.to_vec()),
        },
        None => Selector::only(DeviceName::CPU),
    };
    let mut builder = Footing::builder().devices(selector).journal(journal.clone());
    if !drill.is_empty() {
        builder = builder.drill(drill.parse().unwrap());
    }
    (Runner::open(Arc::new(builder.build().unwrap()), &fixture(model)).unwrap(), journal)
}

/// Logits of all rows and the hidden states between all blocks.
fn forward(runner: &Runner) -> Result<RunOutcome<Vec<f32>>, ModelError> {
    let batch = TokenBatch::new(&[vec![5, 9, 17, 2], vec![40, 3]], 96).unwrap();
    let logits = if runner.opened().has_head() { Logits::All } else { Logits::None };
    let want = Want { logits, hidden: true, last_hidden: true };
    let work = Work { batch: 2, prompt: 4, new_tokens: 0, want };
    runner.run(&RunRequest::new("forward", work), |attempt| {
        let output = attempt.model().forward(&batch, want)?;
        let logits = output.logits.map_or_else(Vec::new, |logits| logits.numbers);
        let hidden = output.hidden.iter().map(|rows| &rows.numbers);
        Ok(std::iter::once(&logits).chain(hidden).flat_map(|rows| of_tokens(rows)).collect())
    })
}

/// The rows of tokens. The second text begins behind two rows of padding, which hold what no token sees and each device leaves there.
fn of_tokens(numbers: &[f32]) -> Vec<f32> {
    let rows = numbers.chunks_exact((numbers.len() / 8).max(1)).enumerate();
    rows.filter(|(row, _)| !(4..6).contains(row))
        .flat_map(|(_, numbers)| numbers)
        .copied()
        .collect()
}

/// Tokens, decoded with a cache.
fn generated(runner: &Runner) -> RunOutcome<Vec<Vec<u32>>> {
    let request = Request {
        prompts: vec![vec![5, 9, 17, 2], vec![40, 3]],
        max_tokens: 12,
        ends: Vec::new(),
        sampling: Sampling::GREEDY,
    };
    let work = Work { batch: 2, prompt: 4, new_tokens: 12, want: WANT };
    runner
        .run(&RunRequest::new("generate", work), |attempt| {
            let all =
                attempt.model().generate(&request, |_, _| std::ops::ControlFlow::Continue(()))?;
            Ok(all.into_iter().map(|one| one.tokens).collect::<Vec<_>>())
        })
        .unwrap()
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && worst <= 1e-4, "{what} differs by {worst}");
}

fn told(runner: &RunOutcome<Vec<f32>>) -> String {
    runner.plan.told_devices()
}

#[test]
fn blocks_on_two_devices_give_what_they_give_on_one() {
    for model in ["llama-tiny", "gemma3-tiny", "bert-tiny", "qwen2-moe-tiny"] {
        let (alone, _) = runner(model, None, "");
        let expected = forward(&alone).unwrap().value;
        let blocks = alone.blueprint().blocks.len();
        for first in [0, 1, blocks] {
            let (two, journal) = runner(model, Some(&[first, blocks - first]), "");
            let got = forward(&two).unwrap();
            assert_close(&got.value, &expected, &format!("{model} with {first} blocks there"));
            assert!(got.faults.is_empty() && got.on_cpu.is_empty(), "{model}: {:?}", got.faults);
            let devices = got.plan.device_map.len();
            assert_eq!(devices, if first == 1 { 2 } else { 1 }, "{model}: {}", told(&got));
            let is_told = |event: &Event| event.context_value("device_map").is_some();
            let notes = journal.recent();
            let mut notes = notes.iter().filter(|event| event.kind == EventKind::Note);
            assert!(notes.any(is_told), "the journal has no device map");
        }
    }
}

#[test]
fn tokens_are_the_same_with_the_cache_of_each_block_on_its_device() {
    for model in ["llama-tiny", "gpt2-tiny", "mistral-window"] {
        let (alone, _) = runner(model, None, "");
        let blocks = alone.blueprint().blocks.len();
        let (two, _) = runner(model, Some(&[1, blocks - 1]), "");
        let got = generated(&two);
        assert_eq!(got.value, generated(&alone).value, "{model}");
        assert_eq!(got.plan.device_map.len(), 2, "{model}");
    }
}

#[test]
fn a_lost_devices_blocks_move_to_the_other_and_the_tokens_are_the_same() {
    let (alone, _) = runner("llama-tiny", None, "");
    let expected = generated(&alone).value;
    // Block 0 is on the other device, blocks 1 and 2 and the head are on the CPU.
    let losses = [("block 0", other(), DeviceName::CPU), ("block 2", DeviceName::CPU, other())];
    for (part, lost, left) in losses {
        for when in ["at=before,step=5", "at=during,step=3,nth=2", "at=after,step=1"] {
            let drill = format!("device_lost:op={part},device={lost},{when}");
            let (two, _) = runner("llama-tiny", Some(&[1, 2]), &drill);
            let got = generated(&two);
            assert_eq!(got.value, expected, "{drill}");
            assert_eq!(got.rungs, [Rung::NextDevice], "{drill}");
            let [fault] = &got.faults[..] else { panic!("{drill}: {:?}", got.faults) };
            assert_eq!(fault.kind, FaultKind::DeviceLost);
            assert_eq!(fault.device.as_deref(), Some(lost.to_string().as_str()), "{drill}");
            assert_eq!(got.device, left, "{drill}");
            assert!(got.plan.device_map.is_empty(), "all blocks are on {left}");
            let again = generated(&two);
            assert_eq!((again.value, again.faults.len()), (expected.clone(), 0), "it stays so");
        }
    }
}

#[test]
fn a_block_that_runs_out_of_memory_beside_the_cpu_is_recovered_with_the_same_numbers() {
    let (alone, _) = runner("llama-tiny", None, "");
    let expected = forward(&alone).unwrap().value;
    for part in ["block 0", "block 2", "head"] {
        let drill = format!("out_of_memory:op={part},count=1");
        let (two, _) = runner("llama-tiny", Some(&[1, 2]), &drill);
        let got = forward(&two).unwrap();
        assert_close(&got.value, &expected, &drill);
        let struck: u64 = two.footing().drill().strikes().iter().map(|it| it.struck).sum();
        assert_eq!(struck, 1, "{drill}");
    }
}

#[test]
fn numbers_of_blocks_that_do_not_belong_to_the_model_are_refused() {
    let (two, _) = runner("llama-tiny", Some(&[1, 1]), "");
    let error = forward(&two).map(|run| run.value.len()).unwrap_err().to_string();
    assert!(error.contains("the model has 3 blocks"), "{error}");
}
