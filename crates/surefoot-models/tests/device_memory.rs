//! What a device really holds of a quantised model, measured. One test, so that nothing else in the process uses the device;
//! `SUREFOOT_TEST_DEVICE` names another one than the CPU, which does not tell what it holds.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::folder::header::WeightDtype;
use surefoot_models::stream::needs::Work;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Opened, TokenBatch, Want};
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
}
