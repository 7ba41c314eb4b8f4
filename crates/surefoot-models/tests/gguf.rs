//! GGUF files against the outputs of transformers for the same weights; `make_gguf.py` wrote the files.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use safetensors::SafeTensors;
use surefoot_models::generate::text::Texts;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::{Logits, ModelError, Opened, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::All, hidden: false, last_hidden: false };

/// The CPU, or the device that `SUREFOOT_TEST_DEVICE` names.
fn device() -> Device {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => surefoot::device::open(name.parse().unwrap()).unwrap().burn().clone(),
        Err(_) => Device::flex(),
    }
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn file(name: &str) -> PathBuf {
    tests().join("gguf").join(name)
}

/// The logits of a file for the tokens of a fixture, with a share of its matrices resident.
fn logits(name: &str, fixture: &str, share: f64) -> (Vec<f32>, Vec<f32>, Placement) {
    let bytes = std::fs::read(tests().join("fixtures").join(fixture).join("golden.safetensors"));
    let bytes = bytes.unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let width = ids.shape()[1];
    let ids: Vec<u32> = ids.data().as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
    let sequences: Vec<Vec<u32>> = ids.chunks(width).map(<[u32]>::to_vec).collect();
    let expected = golden.tensor("logits").unwrap();
    let expected = expected.data().as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
    let opened = Opened::new(&file(name)).unwrap();
    let work = Work { batch: 2, prompt: 24, new_tokens: 0, want: WANT };
    let plan = opened.plan_with_share(&work, share);
    let model = opened.load(&plan, &device(), Arc::default()).unwrap();
    let batch = TokenBatch::new(&sequences, model.blueprint().vocab).unwrap();
    let output = model.forward(&batch, WANT).unwrap();
    (output.logits.unwrap().numbers, expected, plan.mode)
}

fn worst(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn f32_weights_give_the_logits_of_transformers_in_every_mode() {
    for fixture in [
        "llama-tiny",
        "gemma2-tiny",
        "gemma3-tiny",
        "cohere-tiny",
        "cohere2-tiny",
        "mixtral-tiny",
        "qwen2-moe-tiny",
        "qwen3-moe-tiny",
    ] {
        for (share, expected_mode) in
            [(1.0, Placement::Resident), (0.5, Placement::Mixed), (0.0, Placement::Streamed)]
        {
            let (got, expected, mode) = logits(&format!("{fixture}.F32.gguf"), fixture, share);
            assert_eq!(mode, expected_mode, "{fixture}");
            let far = worst(&got, &expected);
            assert!(far <= 1e-4, "{fixture}, {mode:?}: {far}");
        }
    }
}

/// The root of the mean squared difference, relative to the size of what is expected.
fn relative(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let difference: f32 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / expected.iter().map(|number| number.powi(2)).sum::<f32>()).sqrt()
}

/// A row, a head or a scale in the wrong place makes a difference of about 1.
#[test]
fn quantised_weights_give_nearly_those_logits_and_the_same_in_every_mode() {
    for (name, fixture, limit) in [
        ("llama-tiny.Q8_0.gguf", "llama-tiny", 0.03),
        ("qwen2-tiny.Q8_0.gguf", "qwen2-tiny", 0.03),
        ("qwen3.Q8_0.gguf", "qwen3", 0.03),
        ("mistral-nowindow.Q8_0.gguf", "mistral-nowindow", 0.03),
        ("gpt2-tiny.Q8_0.gguf", "gpt2-tiny", 0.03),
        ("llama-tiny.Q4_0.gguf", "llama-tiny", 0.35),
        // Norms behind the halves of a block make small numbers large.
        ("gemma3-tiny.Q8_0.gguf", "gemma3-tiny", 0.06),
        ("llama-wide.Q4_K.gguf", "llama-wide", 0.35),
        // An expert that another one is chosen for makes a larger difference.
        ("qwen3-moe-tiny.Q4_0.gguf", "qwen3-moe-tiny", 0.6),
    ] {
        let (resident, expected, _) = logits(name, fixture, 1.0);
        let far = relative(&resident, &expected);
        println!("{name}: {far}");
        assert!(far <= limit, "{name}: {far}");
        assert!(far > 0.0, "{name} can't be exact");
        for share in [0.5, 0.0] {
            let got = logits(name, fixture, share).0;
            match device() == Device::flex() {
                true => assert_eq!(got, resident, "{name}"),
                // Sums may be in another order there.
                false => assert!(worst(&got, &resident) <= 1e-3, "{name}"),
            }
        }
    }
}

#[test]
fn packed_weights_take_the_bytes_of_their_file() {
    let opened = Opened::new(&file("llama-tiny.Q4_0.gguf")).unwrap();
    for matrix in &opened.binding.matrices {
        assert_eq!(opened.format().bytes(matrix), matrix.file_bytes());
    }
}

#[test]
fn the_tokenizer_is_that_of_the_folder() {
    let folder = Texts::open(&tests().join("fixtures/llama-tiny"), 256).unwrap();
    let gguf = Texts::open(&file("llama-tiny.Q8_0.gguf"), 256).unwrap();
    assert!(Texts::exist(&file("llama-tiny.Q8_0.gguf")));
    for text in ["", "the quick brown fox", "  It's\n\n 2026: naïve — 東京!", "a<|endoftext|>b"]
    {
        let tokens = folder.encode(text).unwrap();
        assert_eq!(gguf.encode(text).unwrap(), tokens, "{text:?}");
        assert_eq!(gguf.decode(&tokens).unwrap(), folder.decode(&tokens).unwrap());
    }
    let opened = Opened::new(&file("llama-tiny.Q8_0.gguf")).unwrap();
    assert_eq!(opened.end_tokens().unwrap(), [0]);
}

/// A copy of a file in which some bytes are others.
fn changed(from: &[u8], to: &[u8]) -> ModelError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    let mut bytes = std::fs::read(file("llama-tiny.Q8_0.gguf")).unwrap();
    let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
    bytes[at..at + from.len()].copy_from_slice(to);
    std::fs::write(&path, bytes).unwrap();
    Opened::new(&path).unwrap_err()
}

#[test]
fn what_can_not_be_run_is_refused_by_name() {
    let error = changed(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0llamb").to_string();
    assert!(error.contains("'general.architecture' is 'llamb'"), "{error}");
    let error = changed(b"blk.1.attn_q.weight", b"blk.1.attn_q.weighs").to_string();
    assert!(error.contains("model.layers.1.self_attn.q_proj.weight"), "{error}");
    let error = changed(b"GGUF", b"GGML").to_string();
    assert!(error.contains("is not a GGUF file"), "{error}");
}
