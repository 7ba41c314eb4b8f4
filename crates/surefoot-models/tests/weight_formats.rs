//! Every format of weights and every family with weights in 8 and 4 bits, in every mode of execution, against what transformers
//! computes with the same rounded weights: `make_rounded_goldens.py` rounded them with the `gguf` package, `make_quantized.py` by the
//! formulas of GPTQ, AWQ and fp8. Small enough for a software GPU too (`SUREFOOT_TEST_DEVICE` names another device than the CPU).
//!
//! GPUs multiply dequantised numbers in f32, so they come as near as f32 weights do. The CPU rounds activations to 8 bits as well.
//! GGUF files in formats that every program rounds to alike are written on the spot from those of `tests/gguf`.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use safetensors::SafeTensors;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Opened, TokenBatch, Want};
use surefoot_quant::BlockFormat::{self, *};
use surefoot_quant::gguf::Gguf;

/// As many tokens of a fixture are run as `make_rounded_goldens.py` runs.
const TOKENS: usize = 8;
/// GPUs may add up in another order than transformers does.
const NEAR: f32 = 1e-3;

/// The CPU, or the device that `SUREFOOT_TEST_DEVICE` names.
fn device() -> Device {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => surefoot::device::open(name.parse().unwrap()).unwrap().burn().clone(),
        Err(_) => Device::flex(),
    }
}

fn is_cpu() -> bool {
    device() == Device::flex()
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// A copy of a GGUF file in which every matrix whose rows are whole blocks is in `format`.
fn rewritten(file: &Path, format: BlockFormat, to: &Path) {
    let (bytes, header) = (std::fs::read(file).unwrap(), Gguf::open(file).unwrap());
    let first = &header.tensors[0].name;
    let name = [&(first.len() as u64).to_le_bytes()[..], first.as_bytes()].concat();
    let described = bytes.windows(name.len()).position(|part| part == name).unwrap();
    let (mut out, mut data) = (bytes[..described].to_vec(), Vec::<u8>::new());
    for tensor in &header.tensors {
        let stored = &bytes[tensor.range.start as usize..tensor.range.end as usize];
        let mut numbers = vec![0.0; (tensor.cols() * tensor.rows()) as usize];
        tensor.format.dequantize(stored, &mut numbers).unwrap();
        let whole = (tensor.cols() as usize).is_multiple_of(format.block_len());
        let into = if tensor.shape.len() > 1 && whole { format } else { F32 };
        let mut blocks = vec![0; into.bytes_of(numbers.len()).unwrap()];
        into.quantize(&numbers, &mut blocks).unwrap();
        out.extend((tensor.name.len() as u64).to_le_bytes());
        out.extend(tensor.name.as_bytes());
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().for_each(|size| out.extend(size.to_le_bytes()));
        out.extend(into.ggml_type().unwrap().to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(blocks);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    std::fs::write(to, [out, data].concat()).unwrap();
}

fn floats(bytes: &[u8], name: &str) -> Vec<f32> {
    let golden = SafeTensors::deserialize(bytes).unwrap();
    let data = golden.tensor(name).unwrap().data().to_vec();
    data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// What transformers computes with rounded weights.
fn golden(name: &str) -> Vec<f32> {
    floats(&std::fs::read(tests().join("rounded.safetensors")).unwrap(), name)
}

/// The tokens of the first sequence of a folder's golden file.
fn tokens_of(folder: &Path) -> Vec<u32> {
    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let all = ids.data().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    all.take(ids.shape()[1]).collect()
}

/// The first tokens of a fixture.
fn tokens(fixture: &str) -> Vec<u32> {
    let mut tokens = tokens_of(&tests().join("fixtures").join(fixture));
    tokens.truncate(TOKENS);
    tokens
}

/// The logits, or the last hidden state, of one sequence with a share of the matrices resident.
fn outputs(opened: &Opened, tokens: &[u32], has_logits: bool, share: f64) -> (Vec<f32>, Placement) {
    let logits = if has_logits { Logits::All } else { Logits::None };
    let want = Want { logits, hidden: false, last_hidden: !has_logits };
    let work = Work { batch: 1, prompt: tokens.len(), new_tokens: 0, want };
    let plan = opened.plan_with_share(&work, share);
    let model = opened.load(&plan, &device(), Arc::default()).unwrap();
    let batch = TokenBatch::new(&[tokens.to_vec()], model.blueprint().vocab).unwrap();
    let output = model.forward(&batch, want).unwrap();
    (output.logits.or(output.last_hidden).unwrap().numbers, plan.mode)
}

/// The root of the mean squared difference, relative to the size of what is expected.
fn relative(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let difference: f32 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / expected.iter().map(|number| number.powi(2)).sum::<f32>()).sqrt()
}

const MODES: [(f64, Placement); 3] =
    [(1.0, Placement::Resident), (0.5, Placement::Mixed), (0.0, Placement::Streamed)];

fn on_device(path: &Path) -> Opened {
    let compute = surefoot_models::folder::header::WeightDtype::F32;
    Opened::new(path).unwrap().on(&device(), compute)
}

/// Runs `opened` in every mode and compares with `expected`, within `limit`; modes may differ by the order of sums.
fn check(
    what: &str,
    opened: &Opened,
    tokens: &[u32],
    has_logits: bool,
    (expected, limit): (&[f32], f32),
) {
    let mut first: Option<Vec<f32>> = None;
    for (share, expected_mode) in MODES {
        let (got, mode) = outputs(opened, tokens, has_logits, share);
        assert_eq!(mode, expected_mode, "{what}");
        let far = relative(&got, expected);
        println!("{what}, {mode:?}: {far}");
        assert!(far <= limit, "{what}, {mode:?}: {far}");
        let resident = first.get_or_insert_with(|| got.clone());
        let apart = relative(&got, resident);
        assert!(apart <= 1e-4, "{what}, {mode:?} differs from resident by {apart}");
    }
}

/// How far a product with weights in `format` may take a model from transformers on this device.
fn limit(format: BlockFormat, has_experts: bool) -> f32 {
    match (is_cpu() && format.is_quantized(), has_experts) {
        (false, _) => NEAR,
        (true, false) => 0.06,
        // Rounded activations can choose another expert.
        (true, true) => 0.25,
    }
}

fn has_experts(name: &str) -> bool {
    name.contains("moe") || name.contains("mixtral")
}

#[test]
fn every_format_of_gguf_files_gives_the_logits_of_transformers_in_every_mode() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens("llama-wide");
    for format in BlockFormat::ALL.into_iter().filter(|format| format.ggml_type().is_some()) {
        // Each program rounds to these in its own way; the files are llama.cpp's.
        let file = match format {
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K => {
                tests().join(format!("gguf/llama-wide.{format}.gguf"))
            }
            _ => {
                let file = folder.path().join("packed.gguf");
                rewritten(&tests().join("gguf/llama-wide.Q4_K.gguf"), format, &file);
                file
            }
        };
        let opened = on_device(&file);
        // Llama.cpp puts one of seven matrices of a Q4_K file into Q5_K.
        let stored = opened.binding.matrices.iter().filter(|matrix| matrix.target() == format);
        assert!(stored.count() >= 6, "{format}");
        let expected = golden(&format!("llama-wide/{format}"));
        let limit = limit(format, false);
        check(format.name(), &opened, &tokens, true, (&expected, limit));
    }
}

/// Families whose GGUF files llama.cpp's converter writes in an order of its own.
#[test]
fn every_family_of_gguf_files_gives_the_logits_of_transformers_in_eight_and_four_bits() {
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed.gguf");
    for name in [
        "llama-tiny.F32",
        "gemma2-tiny.F32",
        "gemma3-tiny.F32",
        "cohere-tiny.F32",
        "cohere2-tiny.F32",
        "mixtral-tiny.F32",
        "qwen2-moe-tiny.F32",
        "qwen3-moe-tiny.F32",
        "qwen2-tiny.Q8_0",
        "qwen3.Q8_0",
        "mistral-nowindow.Q8_0",
        "gpt2-tiny.Q8_0",
    ] {
        let (fixture, _) = name.split_once('.').unwrap();
        for format in [Q8_0, Q4_0] {
            rewritten(&tests().join("gguf").join(format!("{name}.gguf")), format, &packed);
            let expected = golden(&format!("gguf/{name}/{format}"));
            let limit = limit(format, has_experts(name));
            let what = format!("{name} in {format}");
            check(&what, &on_device(&packed), &tokens(fixture), true, (&expected, limit));
        }
    }
}

/// Folders that are quantised while they are loaded. `quantize.rs` compares them with folders that `surefoot quantize` writes.
#[test]
fn every_family_of_folders_gives_the_outputs_of_transformers_in_eight_and_four_bits() {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(tests().join("fixtures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.join("golden.safetensors").exists())
        .collect();
    folders.sort();
    assert!(folders.len() >= 40, "{}", folders.len());
    for path in folders {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(path.join("golden.safetensors")).unwrap();
        let has_logits = SafeTensors::deserialize(&bytes).unwrap().tensor("logits").is_ok();
        for (choice, format) in [(WeightChoice::Q8, Q8_0), (WeightChoice::Q4, Q4_0)] {
            let opened = on_device(&path).with_weights(choice);
            let expected = golden(&format!("{choice}/{name}"));
            let what = format!("{name} in {choice}");
            let limit = limit(format, has_experts(&name));
            check(&what, &opened, &tokens(&name), has_logits, (&expected, limit));
        }
    }
}

/// What other programs quantised.
#[test]
fn every_foreign_format_gives_the_logits_of_transformers() {
    for (name, is_exact) in [
        ("gptq-symmetric", true),
        ("gptq-zero-points", true),
        // What does not fit into blocks of 4 bits is rounded to 8.
        ("gptq-act-order", false),
        ("gptq-v2-whole", true),
        ("awq", true),
        ("fp8-blocks", false),
        ("fp8-tensor", false),
        ("fp8-channel", false),
    ] {
        let folder = tests().join("quantized").join(name);
        let tokens = tokens_of(&folder);
        let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
        let mut expected = floats(&bytes, "logits");
        expected.truncate(expected.len() / 2);
        let limit = if is_exact && !is_cpu() { NEAR } else { 0.06 };
        check(name, &on_device(&folder), &tokens, true, (&expected, limit));
    }
}

/// A model on a device takes the memory of its packed weights there, not that of f32.
#[test]
fn quantised_weights_stay_packed_on_every_device() {
    for format in BlockFormat::ALL.into_iter().filter(|format| format.ggml_type().is_some()) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("packed.gguf");
        rewritten(&tests().join("gguf/llama-wide.Q4_K.gguf"), format, &file);
        let opened = on_device(&file);
        let matrices = || opened.binding.matrices.iter().filter(|matrix| matrix.block.is_some());
        let kept: u64 = matrices().map(|matrix| opened.format().bytes(matrix)).sum();
        let stored: u64 = matrices().map(|matrix| matrix.file_bytes()).sum();
        let numbers = stored as usize / format.block_bytes() * format.block_len();
        let bits = kept as f64 * 8.0 / numbers as f64;
        let most = match (is_cpu(), format) {
            (_, F32) => 32.0,
            (true, F16 | BF16) => 16.0,
            (false, F16 | BF16) => 32.0,
            (true, format) => 8.0 * format.block_bytes() as f64 / format.block_len() as f64,
            // Integers of 4 or 8 bits, and a scale and mostly an offset in f32 for 16 or 32 of them.
            (false, Q2_K) => 8.0,
            (false, Q3_K | Q4_1 | Q4_K | Q4_0) => 6.0,
            (false, _) => 10.0,
        };
        assert!(bits <= most, "{format}: {bits} bits a number");
    }
}
