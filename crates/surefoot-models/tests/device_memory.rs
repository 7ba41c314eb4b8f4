//! What a device really holds of a quantised model, measured. One test, so that nothing else in the process uses the device;
//! `SUREFOOT_TEST_DEVICE` names another one than the CPU, which does not tell what it holds.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::folder::header::WeightDtype;
use surefoot_models::generate::session::{Decoding, Limits};
use surefoot_models::stream::needs::Work;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Opened, Rectangle, TokenBatch, Want};
use testkit::model_folders::{FolderDtype, llama};

const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };

fn device() -> Device {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => surefoot::device::open(name.parse().unwrap()).unwrap().burn().clone(),
        Err(_) => Device::flex(),
    }
}

/// The bytes that tensors on the device take, if it tells.
fn in_use(device: &Device) -> Option<u64> {
    device.sync().unwrap();
    device.memory_cleanup();
    device.memory_pool_usage().map(|usage| usage.bytes_in_use)
}

#[test]
fn a_model_in_four_bits_takes_the_memory_of_four_bits_before_and_after_a_pass() {
    let (device, folder) = (device(), tempfile::tempdir().unwrap());
    let stored = llama(folder.path(), 40 << 20, FolderDtype::F32);
    let opened = Opened::new(folder.path())
        .unwrap()
        .on(&device, WeightDtype::F32)
        .with_weights(WeightChoice::Q4);
    let matrices = &opened.binding.matrices;
    let packed: u64 = matrices.iter().map(|matrix| opened.format().bytes(matrix)).sum();
    assert!(packed * 4 < stored, "{packed} of {stored} bytes");
    let work = Work { batch: 1, prompt: 4, new_tokens: 0, want: WANT };
    let before = in_use(&device);
    let plan = opened.plan_with_share(&work, 1.0);
    let model = opened.load(&plan, &device, Arc::default()).unwrap();
    let batch = TokenBatch::new(&[vec![5, 31, 7, 60]], model.blueprint().vocab).unwrap();
    // Buffers are rounded up, and vectors are there as well: far less than the f32 numbers of one matrix.
    let most = packed + (4 << 20);
    let check = |when: &str| {
        let (Some(before), Some(now)) = (before, in_use(&device)) else { return };
        let held = now.saturating_sub(before);
        println!("{when}: {held} bytes held for {packed} packed ones, {stored} in f32");
        assert!(held >= packed / 2, "{when}: {held} bytes held for {packed}");
        assert!(held <= most, "{when}: {held} bytes held, {packed} packed, {stored} in f32");
    };
    check("loaded");
    let output = model.forward(&batch, WANT).unwrap();
    assert!(output.logits.unwrap().numbers.iter().all(|number| number.is_finite()));
    check("after a pass");
    drop(model);
    check_recordings(&device);
}

/// A recorded step keeps the memory of no cache that has become too small, and of no model that is gone.
fn check_recordings(device: &Device) {
    let Some(before) = in_use(device) else { return };
    let folder = tempfile::tempdir().unwrap();
    let stored = llama(folder.path(), 24 << 20, FolderDtype::F32);
    let opened = Opened::new(folder.path()).unwrap().on(device, WeightDtype::F32);
    let work = Work { batch: 32, prompt: 8, new_tokens: 16, want: WANT };
    let model = opened.load(&opened.plan_with_share(&work, 1.0), device, Arc::default()).unwrap();
    let mut limits = Limits { rows: 32, positions: 2048, cache_tokens: 0, pass_tokens: 256 };
    limits.cache_tokens = limits.most_cache_tokens();
    let mut decoding = Decoding::new(&model, limits);
    let mut passes = model.passes();
    // So many that one of them is recorded and others repeat it.
    let mut decode = |decoding: &mut Decoding, joining: usize| {
        decoding.join(&mut passes, &vec![vec![5, 31, 7]; joining], Rectangle::default()).unwrap();
        let held = reserved(device);
        for _ in 0..6 {
            decoding.step(&mut passes, &vec![9; decoding.len()], 0).unwrap();
        }
        held
    };
    decode(&mut decoding, 16);
    let small = reserved(device);
    // One more makes a cache of twice as many rows.
    let large = decode(&mut decoding, 1);
    let blueprint = model.blueprint();
    let of_token = 8 * blueprint.kv_heads * blueprint.head_dim * blueprint.blocks.len();
    let of_small = (16 * 512 * of_token) as u64;
    let grown = large.saturating_sub(small);
    println!("a cache of {of_small} bytes has become twice as large: {small} bytes, then {large}");
    assert!(grown < of_small * 3 / 2, "{grown} bytes more, and the cache has {of_small} more");

    drop(passes);
    drop(model);
    let held = in_use(device).unwrap().saturating_sub(before);
    println!("{held} bytes are held without the model, whose weights were {stored}");
    assert!(
        held < 2 * of_small + (4 << 20),
        "{held} bytes held, {of_small} of them twice for keys and values"
    );
    drop(decoding);
}

/// The bytes that are set aside for tensors on a device that tells, or can't be given back.
fn reserved(device: &Device) -> u64 {
    device.sync().unwrap();
    device.memory_cleanup();
    device.memory_pool_usage().unwrap().bytes_reserved
}
