//! Weights that are quantised while they are loaded, against the outputs of transformers for the exact weights.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use safetensors::SafeTensors;
use surefoot_models::folder::header::WeightDtype;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Opened, Output, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::None, hidden: false, last_hidden: true };

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The golden tensors of a fixture: the tokens, and the numbers that transformers gave for them.
fn golden(name: &str) -> (Vec<Vec<u32>>, Vec<f32>) {
    let bytes = std::fs::read(fixture(name).join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let width = ids.shape()[1];
    let ids: Vec<u32> = ids.data().as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
    let outputs = if golden.names().contains(&"logits") { "logits" } else { "last_hidden_state" };
    let outputs = golden.tensor(outputs).unwrap();
    let outputs = outputs.data().as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
    (ids.chunks(width).map(<[u32]>::to_vec).collect(), outputs)
}

fn run(opened: &Opened, sequences: &[Vec<u32>], share: f64) -> (Output, Placement) {
    let want = match opened.has_head() {
        true => Want { logits: Logits::All, last_hidden: false, ..WANT },
        false => WANT,
    };
    let work = Work { batch: sequences.len(), prompt: sequences[0].len(), new_tokens: 0, want };
    let plan = opened.plan_with_share(&work, share);
    let model = opened.load(&plan, &Device::flex(), Arc::default()).unwrap();
    let batch = TokenBatch::new(sequences, model.blueprint().vocab).unwrap();
    (model.forward(&batch, want).unwrap(), plan.mode)
}

fn numbers(output: Output) -> Vec<f32> {
    output.logits.or(output.last_hidden).unwrap().numbers
}

/// The root of the mean squared difference, relative to the size of what is expected.
fn relative(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let difference: f32 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / expected.iter().map(|number| number.powi(2)).sum::<f32>()).sqrt()
}

/// A row, a head or a scale in the wrong place makes a difference of about 1. The weights of these models are
/// random, which is the hardest case for few bits.
#[test]
fn outputs_are_near_those_of_the_exact_weights_in_every_mode() {
    for (name, q8, q4) in [
        ("llama-tiny", 0.03, 0.35),
        ("qwen2-tiny", 0.03, 0.35),
        ("gpt2-tiny", 0.03, 0.35),
        ("bert-tiny", 0.03, 0.35),
        ("llama-f16-sharded", 0.03, 0.35),
        ("neox-tiny", 0.03, 0.35),
    ] {
        let (sequences, expected) = golden(name);
        for (choice, limit) in [(WeightChoice::Q8, q8), (WeightChoice::Q4, q4)] {
            let opened = Opened::new(&fixture(name)).unwrap().with_weights(choice);
            let (resident, mode) = run(&opened, &sequences, 1.0);
            assert_eq!(mode, Placement::Resident);
            let resident = numbers(resident);
            let far = relative(&resident, &expected);
            println!("{name} {choice}: {far}");
            assert!(far > 1e-5 && far <= limit, "{name} {choice}: {far}");
            for (share, expected_mode) in [(0.5, Placement::Mixed), (0.0, Placement::Streamed)] {
                let (other, mode) = run(&opened, &sequences, share);
                assert_eq!(mode, expected_mode, "{name} {choice}");
                // Sums of pieces are added in another order where rows are inputs.
                let apart = relative(&numbers(other), &resident);
                assert!(apart < 1e-4, "{name} {choice} {mode:?}: {apart}");
            }
        }
    }
}

/// Half the bits are half the bytes, in every precision of products.
#[test]
fn plans_count_the_packed_bytes() {
    let opened = Opened::new(&fixture("qwen2-tiny")).unwrap();
    let bytes = |choice: WeightChoice, compute: WeightDtype| -> u64 {
        let opened = opened.clone().on(&Device::flex(), compute).with_weights(choice);
        let matrices = opened.binding.matrices.iter().filter(|matrix| matrix.block.is_some());
        matrices.map(|matrix| opened.format().bytes(matrix)).sum()
    };
    let numbers = bytes(WeightChoice::AsStored, WeightDtype::F32) / 4;
    for compute in [WeightDtype::F32, WeightDtype::Bf16] {
        assert_eq!(bytes(WeightChoice::Q8, compute), numbers * 34 / 32);
        assert_eq!(bytes(WeightChoice::Q4, compute), numbers * 18 / 32);
    }
    assert_eq!(bytes(WeightChoice::AsStored, WeightDtype::Bf16), numbers * 2);
}

/// What can't be quantised is named, not loaded as zeros.
#[test]
fn a_weight_that_is_not_finite_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama-tiny").join(file), folder.path().join(file)).unwrap();
    }
    let file = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let json = String::from_utf8(bytes[8..8 + header].to_vec()).unwrap();
    let at = json.find("model.layers.1.mlp.up_proj.weight").unwrap();
    let offsets = json[at..].split("\"data_offsets\":[").nth(1).unwrap();
    let start: usize = offsets.split(',').next().unwrap().trim().parse().unwrap();
    bytes[8 + header + start + 64..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let opened = Opened::new(folder.path()).unwrap().with_weights(WeightChoice::Q4);
    let work = Work { batch: 1, prompt: 4, new_tokens: 0, want: WANT };
    let plan = opened.plan_with_share(&work, 1.0);
    let error = opened.load(&plan, &Device::flex(), Arc::default()).err().unwrap().to_string();
    assert!(error.contains("model.layers.1.mlp.up_proj.weight"), "{error}");
    assert!(error.contains("NaN or infinite"), "{error}");
}
