//! The fixtures made with transformers: logits and every hidden state within 1e-4.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::SafeTensors;
use surefoot_models::{Batch, Logits, Model, Want};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn floats(golden: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = golden.tensor(name).unwrap();
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-4, "{what}: {worst}");
    eprintln!("{what}: {worst:e}");
}

fn check(model: &Model, folder: &Path) {
    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let width = ids.shape()[1];
    let ids: Vec<u32> =
        ids.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    let sequences: Vec<Vec<u32>> = ids.chunks(width).map(<[u32]>::to_vec).collect();
    let batch = Batch::new(&sequences, model.blueprint().vocab).unwrap();
    let logits = if model.has_head() { Logits::All } else { Logits::None };
    let output = model.forward(&batch, Want { logits, hidden: true, last_hidden: true }).unwrap();
    let name = folder.file_name().unwrap().to_string_lossy();
    for (number, hidden) in output.hidden.iter().enumerate() {
        close(
            &format!("{name} hidden_{number}"),
            &hidden.numbers,
            &floats(&golden, &format!("hidden_{number}")),
        );
    }
    if model.has_head() {
        close(
            &format!("{name} logits"),
            &output.logits.unwrap().numbers,
            &floats(&golden, "logits"),
        );
    } else {
        close(
            &format!("{name} last_hidden_state"),
            &output.last_hidden.unwrap().numbers,
            &floats(&golden, "last_hidden_state"),
        );
    }
}

#[test]
fn every_fixture_matches_when_resident() {
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let folder = entry.unwrap().path();
        if folder.join("golden.safetensors").exists() {
            check(&Model::resident(&folder, &Device::flex()).unwrap(), &folder);
        }
    }
}
