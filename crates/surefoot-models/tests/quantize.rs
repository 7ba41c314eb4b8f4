//! Folders that were quantised once, against the same weights quantised while they are loaded.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::generate::text::Texts;
use surefoot_models::quantize::{QuantizeOptions, Quantized, quantize};
use surefoot_models::stream::needs::Work;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, ModelError, Opened, TokenBatch, Want};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn made(name: &str, choice: WeightChoice, out: &Path) -> Result<Quantized, ModelError> {
    quantize(&fixture(name), out, &QuantizeOptions::new(choice), |_, _| ())
}

/// The last hidden state, or the logits, of some tokens, with a share of the matrices resident.
fn outputs(opened: &Opened, share: f64) -> Vec<f32> {
    let logits = if opened.has_head() { Logits::All } else { Logits::None };
    let want = Want { logits, hidden: false, last_hidden: !opened.has_head() };
    let work = Work { batch: 2, prompt: 9, new_tokens: 0, want };
    let plan = opened.plan_with_share(&work, share);
    let model = opened.load(&plan, &Device::flex(), Arc::default()).unwrap();
    let sequences = [[3, 1, 4, 1, 5, 9, 2, 6, 5].to_vec(), [2, 7, 1, 8, 2, 8, 1, 8, 2].to_vec()];
    let batch = TokenBatch::new(&sequences, model.blueprint().vocab).unwrap();
    let output = model.forward(&batch, want).unwrap();
    output.logits.or(output.last_hidden).unwrap().numbers
}

fn relative(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let difference: f32 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / expected.iter().map(|number| number.powi(2)).sum::<f32>()).sqrt()
}

/// Every family that can be run, whatever its layout: own and tied heads, inputs as rows (GPT-2), encoders, several files, fp16, experts.
#[test]
fn a_quantised_folder_of_every_family_gives_what_quantising_while_loading_gives() {
    let folder = tempfile::tempdir().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(fixture(""))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 40, "{names:?}");
    for cross_encoder in ["bert-cross", "modernbert-cross", "roberta-cross", "xlm-roberta-cross"] {
        names.push(format!("../cross_encoders/{cross_encoder}"));
    }
    for name in &names {
        for choice in [WeightChoice::Q8, WeightChoice::Q4] {
            let out = folder.path().join(format!("{}-{choice}", name.replace('/', "-")));
            let done = made(name, choice, &out).unwrap();
            // Its rows have 40 and 48 numbers, which are no whole blocks of 32.
            let rounds = name != "neox-odd";
            assert_eq!(done.quantized > 0, rounds, "{name} {done:?}");
            assert_eq!(done.bytes < done.stored_bytes, rounds, "{name} {done:?}");
            let loaded = Opened::new(&fixture(name)).unwrap().with_weights(choice);
            let expected = outputs(&loaded, 1.0);
            let opened = Opened::new(&out).unwrap();
            assert_eq!(outputs(&opened, 1.0), expected, "{name} {choice}");
            for share in [0.5, 0.0] {
                let apart = relative(&outputs(&opened, share), &expected);
                assert!(apart < 1e-4, "{name} {choice} with {share} resident: {apart}");
            }
            let bytes = |opened: &Opened| -> u64 {
                opened.binding.matrices.iter().map(|it| opened.format().bytes(it)).sum()
            };
            assert_eq!(bytes(&opened), bytes(&loaded), "{name} {choice}");
        }
    }
}

#[test]
fn the_rest_of_the_folder_comes_along_and_the_form_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("q4");
    made("llama-tiny", WeightChoice::Q4, &out).unwrap();
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["quant_method"], "surefoot");
    assert_eq!(config["quantization_config"]["weights"], "q4");
    let (old, new) = (Texts::open(&fixture("llama-tiny"), 256), Texts::open(&out, 256));
    let text = "the quick brown fox";
    assert_eq!(new.unwrap().encode(text).unwrap(), old.unwrap().encode(text).unwrap());
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left, [out], "nothing else is left");
}

/// Other programs that read safetensors can read the file, whatever they make of it.
#[test]
fn files_are_plain_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("q4");
    made("qwen2-tiny", WeightChoice::Q4, &out).unwrap();
    let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let view = read.tensor("model.layers.0.mlp.down_proj.weight.Q4_0").unwrap();
    assert_eq!((view.dtype(), view.shape()), (safetensors::Dtype::U8, &[64, 160 / 32 * 18][..]));
    assert!(read.tensor("lm_head.weight.Q8_0").is_ok());
    assert!(read.tensor("model.layers.0.mlp.down_proj.weight").is_err());
}

#[test]
fn a_run_that_was_interrupted_goes_on_and_writes_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (out, plain) = (folder.path().join("out"), folder.path().join("plain"));
    let mut options = QuantizeOptions::new(WeightChoice::Q8);
    options.shard_bytes = 40 << 10;
    let source = fixture("llama-tiny");
    quantize(&source, &plain, &options, |_, _| ()).unwrap();
    let interrupted = catch_unwind(AssertUnwindSafe(|| {
        quantize(&source, &out, &options, |done, all| assert!(done < all / 2, "enough"))
    }));
    assert!(interrupted.is_err());
    assert!(!out.exists(), "a folder that is not whole is not there");
    // Another form can't go on with it.
    let error = made("llama-tiny", WeightChoice::Q4, &out).unwrap_err().to_string();
    assert!(error.contains("out.partial") && error.contains("another run"), "{error}");
    let mut first = None;
    let done = quantize(&source, &out, &options, |done, all| {
        first.get_or_insert((done, all));
    });
    let done = done.unwrap();
    assert!(done.resumed_bytes > 0 && done.resumed_bytes < done.bytes, "{done:?}");
    assert!(!folder.path().join("out.partial").exists());
    let names: Vec<_> = done.files.iter().map(|file| file.file_name().unwrap()).collect();
    assert!(names.iter().any(|name| *name == "model.safetensors.index.json"), "{names:?}");
    for name in names {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert_eq!(read(&out), read(&plain), "{name:?}");
    }
    assert_eq!(
        outputs(&Opened::new(&out).unwrap(), 1.0),
        outputs(&Opened::new(&source).unwrap().with_weights(WeightChoice::Q8), 1.0)
    );
}

#[test]
fn what_can_not_be_made_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = fixture("../gguf/llama-tiny.Q8_0.gguf");
    let options = QuantizeOptions::new(WeightChoice::Q4);
    let error = quantize(&gguf, &folder.path().join("a"), &options, |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("is a GGUF file"), "{error}");
    let error = made("llama-tiny", WeightChoice::Q4, folder.path()).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
    let mut options = options;
    options.memory = Some(1 << 20);
    let error = quantize(&fixture("llama-tiny"), &folder.path().join("b"), &options, |_, _| ());
    assert!(matches!(error, Err(ModelError::Memory { allowed: 1_048_576, .. })), "{error:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A file in which a tensor's name or shape is changed, by a change of its header of the same length.
fn refused(from: &str, to: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("q4");
    made("qwen2-tiny", WeightChoice::Q4, &out).unwrap();
    let file = out.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    std::fs::write(&file, bytes).unwrap();
    Opened::new(&out).unwrap_err().to_string()
}

#[test]
fn blocks_that_are_none_are_refused_by_name() {
    let name = "model.layers.0.mlp.down_proj.weight.Q4_0";
    let error = refused(name, &name.replace("Q4_0", "Q5_0"));
    assert!(error.contains("no blocks of Q5_0"), "{error}");
    let error = refused(name, &name.replace("Q4_0", "Q9_0"));
    assert!(error.contains("down_proj.weight' is missing"), "{error}");
}
