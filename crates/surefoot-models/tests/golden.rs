//! The fixtures made with transformers: logits and every hidden state within 1e-4, in every
//! mode of execution. `SUREFOOT_GOLDENS` names another folder of them, made by
//! `make_goldens.py`, to be tried instead; `SUREFOOT_TEST_DEVICE` another device than the CPU.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use safetensors::SafeTensors;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::{Logits, Model, Opened, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::All, hidden: true, last_hidden: true };

fn folders() -> Vec<PathBuf> {
    let fixtures = match std::env::var_os("SUREFOOT_GOLDENS") {
        Some(more) => PathBuf::from(more),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"),
    };
    let mut folders: Vec<PathBuf> = std::fs::read_dir(fixtures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.join("golden.safetensors").exists())
        .collect();
    folders.sort();
    assert!(folders.len() >= 5, "{folders:?}");
    folders
}

fn device() -> Device {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => surefoot::device::open(name.parse().unwrap()).unwrap().burn().clone(),
        Err(_) => Device::flex(),
    }
}

fn floats(golden: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = golden.tensor(name).unwrap();
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-4, "{what} differs by {worst}");
}

fn check(model: &Model, folder: &Path) {
    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let width = ids.shape()[1];
    let ids: Vec<u32> =
        ids.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    let sequences: Vec<Vec<u32>> = ids.chunks(width).map(<[u32]>::to_vec).collect();
    let batch = TokenBatch::new(&sequences, model.blueprint().vocab).unwrap();
    let logits = if model.has_head() { Logits::All } else { Logits::None };
    let output = model.forward(&batch, Want { logits, ..WANT }).unwrap();
    let name = folder.file_name().unwrap().to_string_lossy();
    assert_eq!(output.hidden.len(), model.blueprint().blocks.len() + 1);
    for (number, hidden) in output.hidden.iter().enumerate() {
        let tensor = format!("hidden_{number}");
        close(&format!("{name} {tensor}"), &hidden.numbers, &floats(&golden, &tensor));
    }
    // A base model whose head is tied has logits all the same, but transformers gives none.
    if golden.names().contains(&"logits") {
        let got = output.logits.unwrap();
        close(&format!("{name} logits"), &got.numbers, &floats(&golden, "logits"));
    } else {
        let got = output.last_hidden.unwrap();
        close(&format!("{name} last"), &got.numbers, &floats(&golden, "last_hidden_state"));
    }
}

/// Opens `folder` with so much of its matrices resident, from 0 to 1.
fn with_share(folder: &Path, share: f64) -> (Model, Placement) {
    let opened = Opened::new(folder).unwrap();
    let work = Work { batch: 2, prompt: 24, new_tokens: 0, want: WANT };
    let plan = opened.plan_with_share(&work, share);
    let mode = plan.mode;
    (opened.load(&plan, &device(), Arc::default()).unwrap(), mode)
}

#[test]
fn every_fixture_matches_when_all_of_it_is_resident() {
    for folder in folders() {
        let (model, mode) = with_share(&folder, 1.0);
        assert_eq!(mode, Placement::Resident);
        check(&model, &folder);
        assert_eq!(model.meter().read().waiting, 0.0);
    }
}

#[test]
fn every_fixture_matches_when_a_part_of_it_is_streamed() {
    for folder in folders() {
        let (model, mode) = with_share(&folder, 0.5);
        assert_eq!(mode, Placement::Mixed);
        check(&model, &folder);
    }
}

#[test]
fn every_fixture_matches_when_all_of_it_is_streamed_and_each_weight_is_read_once() {
    for folder in folders() {
        let (model, mode) = with_share(&folder, 0.0);
        assert_eq!(mode, Placement::Streamed);
        assert_eq!(model.meter().read().file_bytes, 0);
        check(&model, &folder);
        let all: u64 =
            Opened::new(&folder).unwrap().binding.matrices.iter().map(|m| m.file_bytes()).sum();
        let read = model.meter().read().file_bytes;
        // An expert that no token goes through is not read.
        match model.blueprint().blocks.iter().any(|block| block.experts.is_some()) {
            true => assert!(read > all / 2 && read <= all, "{read} of {all}"),
            false => assert_eq!(read, all),
        }
        check(&model, &folder);
        assert_eq!(model.meter().read().file_bytes, 2 * read);
    }
}
