//! Every format of weights in every mode of execution, and every family with weights in 8 and 4 bits: one pass each, small enough for a
//! software GPU too (`SUREFOOT_TEST_DEVICE` names another device than the CPU).
//!
//! A packed model is compared with one that has the same numbers in f32, which `golden.rs` and `gguf.rs` compare with transformers:
//! what is left is how activations are rounded. GGUF files are written on the spot from those of `tests/gguf`.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Opened, TokenBatch, Want};
use surefoot_quant::BlockFormat::{self, *};
use surefoot_quant::gguf::Gguf;

const TOKENS: [u32; 6] = [5, 31, 7, 60, 2, 44];

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

/// The logits, or the last hidden state where there is no head, with a share of the matrices resident.
fn outputs(opened: &Opened, share: f64) -> (Vec<f32>, Placement) {
    let logits = if opened.has_head() { Logits::All } else { Logits::None };
    let want = Want { logits, hidden: false, last_hidden: !opened.has_head() };
    let work = Work { batch: 1, prompt: TOKENS.len(), new_tokens: 0, want };
    let plan = opened.plan_with_share(&work, share);
    let model = opened.load(&plan, &device(), Arc::default()).unwrap();
    let batch = TokenBatch::new(&[TOKENS.to_vec()], model.blueprint().vocab).unwrap();
    let output = model.forward(&batch, want).unwrap();
    (output.logits.or(output.last_hidden).unwrap().numbers, plan.mode)
}

/// The root of the mean squared difference, relative to the size of what is expected.
fn relative(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let difference: f32 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / expected.iter().map(|number| number.powi(2)).sum::<f32>()).sqrt()
}

/// The modes that are run: a software GPU is slow, and a part that streams is no other path there than the whole.
fn modes() -> Vec<(f64, Placement)> {
    let mut modes = vec![(1.0, Placement::Resident), (0.0, Placement::Streamed)];
    if is_cpu() {
        modes.push((0.5, Placement::Mixed));
    }
    modes
}

fn on_device(path: &Path) -> Opened {
    let compute = surefoot_models::folder::header::WeightDtype::F32;
    Opened::new(path).unwrap().on(&device(), compute)
}

/// Runs `opened` in every mode and compares with `expected`, within `limit`; modes may differ by the order of sums.
fn check(what: &str, opened: &Opened, expected: &[f32], limit: f32) {
    let mut first: Option<Vec<f32>> = None;
    for (share, expected_mode) in modes() {
        let (got, mode) = outputs(opened, share);
        assert_eq!(mode, expected_mode, "{what}");
        let far = relative(&got, expected);
        println!("{what}, {mode:?}: {far}");
        assert!(far <= limit, "{what}, {mode:?}: {far}");
        let resident = first.get_or_insert_with(|| got.clone());
        let apart = relative(&got, resident);
        assert!(apart <= 1e-4, "{what}, {mode:?} differs from resident by {apart}");
    }
}

#[test]
fn every_format_of_gguf_files_gives_the_logits_of_its_numbers_in_every_mode() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, plain) = (folder.path().join("packed.gguf"), folder.path().join("plain.gguf"));
    for format in BlockFormat::ALL.into_iter().filter(|format| format.ggml_type().is_some()) {
        rewritten(&tests().join("gguf/llama-wide.Q4_K.gguf"), format, &packed);
        rewritten(&packed, F32, &plain);
        let expected = outputs(&on_device(&plain), 1.0).0;
        let opened = on_device(&packed);
        let stored = opened.binding.matrices.iter().filter(|matrix| matrix.block.is_some());
        assert!(stored.into_iter().all(|matrix| matrix.target() == format), "{format}");
        // The CPU rounds activations to 8 bits; GPUs multiply in f32.
        let limit = if is_cpu() && format.is_quantized() { 0.05 } else { 1e-4 };
        check(format.name(), &opened, &expected, limit);
    }
}

/// Families whose GGUF files llama.cpp's converter writes in an order of its own.
#[test]
fn every_family_of_gguf_files_gives_the_logits_of_its_numbers_in_eight_and_four_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, plain) = (folder.path().join("packed.gguf"), folder.path().join("plain.gguf"));
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
        for format in [Q8_0, Q4_0] {
            rewritten(&tests().join("gguf").join(format!("{name}.gguf")), format, &packed);
            rewritten(&packed, F32, &plain);
            let expected = outputs(&on_device(&plain), 1.0).0;
            let limit = match (is_cpu(), name.contains("moe") || name.contains("mixtral")) {
                (true, false) => 0.06,
                // Rounded activations can choose another expert.
                (true, true) => 0.25,
                (false, _) => 1e-3,
            };
            check(&format!("{name} in {format}"), &on_device(&packed), &expected, limit);
        }
    }
}

/// Folders that are quantised while they are loaded, against the folder that `surefoot quantize` writes.
#[test]
fn every_family_of_folders_gives_nearly_the_same_in_eight_bits_and_the_same_in_every_mode() {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(tests().join("fixtures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.join("golden.safetensors").exists())
        .collect();
    folders.sort();
    assert!(folders.len() >= 40, "{}", folders.len());
    for path in folders {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let expected = outputs(&on_device(&path), 1.0).0;
        let opened = on_device(&path).with_weights(WeightChoice::Q8);
        let limit = if name.contains("moe") || name.contains("mixtral") { 0.5 } else { 0.06 };
        check(&format!("{name} in q8"), &opened, &expected, limit);
    }
}

/// What other programs quantised.
#[test]
fn every_foreign_format_gives_the_logits_of_transformers() {
    for name in [
        "gptq-symmetric",
        "gptq-zero-points",
        "gptq-act-order",
        "gptq-v2-whole",
        "awq",
        "fp8-blocks",
        "fp8-tensor",
        "fp8-channel",
    ] {
        let opened = on_device(&tests().join("quantized").join(name));
        // The same folder with its numbers in f32 on the CPU is what `foreign.rs` compares with transformers.
        let on_cpu = Opened::new(&tests().join("quantized").join(name)).unwrap();
        let work = Work {
            batch: 1,
            prompt: TOKENS.len(),
            new_tokens: 0,
            want: Want { logits: Logits::All, hidden: false, last_hidden: false },
        };
        let plan = on_cpu.plan_with_share(&work, 1.0);
        let model = on_cpu.load(&plan, &Device::flex(), Arc::default()).unwrap();
        let batch = TokenBatch::new(&[TOKENS.to_vec()], model.blueprint().vocab).unwrap();
        let expected = model.forward(&batch, work.want).unwrap().logits.unwrap().numbers;
        check(name, &opened, &expected, 0.06);
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
