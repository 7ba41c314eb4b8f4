//! Plans: what fits stays, only the rest streams, the budget is filled and never exceeded.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;

use proptest::prelude::*;
use surefoot_models::generate::tokens;
use surefoot_models::stream::limits::{DeviceMemory, MemoryLimits};
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::{ModelError, Opened};

fn opened(name: &str) -> Opened {
    Opened::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

const WORK: Work = Work { batch: 1, prompt: 16, new_tokens: 8, want: tokens::WANT };

#[test]
fn without_a_budget_everything_stays() {
    let plan = opened("gpt2-tiny").plan(&WORK, None);
    assert_eq!(
        (plan.mode, plan.window_bytes, plan.streamed_file_bytes),
        (Placement::Resident, 0, 0)
    );
    assert_eq!(plan.parts.len(), 4);
    assert_eq!(plan.parts[3].name, "head");
}

#[test]
fn a_budget_that_is_too_small_says_which_would_do_and_that_one_does() {
    let opened = opened("llama-tiny");
    let error = opened.plan(&WORK, Some(1 << 20)).checked().unwrap_err();
    let ModelError::Memory { needed, allowed } = error else { panic!("{error}") };
    assert_eq!(allowed, 1 << 20);
    // The process itself may have grown meanwhile.
    let plan = opened.plan(&WORK, Some(needed + (32 << 20))).checked().unwrap();
    assert!(plan.fits);
    let exact = opened.plan(&WORK, None).least_bytes;
    assert!(!opened.plan(&WORK, Some(exact - (8 << 20))).fits);
}

#[test]
fn a_longer_prompt_and_a_larger_batch_need_more() {
    let opened = opened("llama-tiny");
    let needs = |batch, prompt| {
        let plan = opened.plan(&Work { batch, prompt, ..WORK }, None);
        plan.needs.kv_cache_bytes + plan.needs.activation_bytes
    };
    assert!(needs(2, 16) > needs(1, 16) && needs(1, 64) > needs(1, 16));
    // Two tensors, three blocks, two heads of 16 numbers, f32, 24 positions.
    assert_eq!(opened.plan(&WORK, None).needs.kv_cache_bytes, 2 * 3 * 2 * 16 * 4 * 24);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_budget_is_filled_to_within_a_piece_and_not_exceeded(room in 200_000_u64..1_000_000) {
        let opened = opened("llama-tiny");
        let fixed = opened.plan(&WORK, None).least_bytes;
        let budget = fixed + room;
        let plan = opened.plan(&WORK, Some(budget));
        if plan.fits {
            prop_assert!(plan.peak_bytes <= budget);
            let total: u64 = plan.parts.iter().map(|part| part.bytes).sum();
            let resident: u64 = plan.parts.iter().map(|part| part.resident_bytes).sum();
            prop_assert_eq!(resident, plan.resident_bytes);
            let largest = 64 << 10;
            prop_assert!(resident == total || budget - plan.peak_bytes <= largest,
                "{} of {} used", plan.peak_bytes, budget);
            prop_assert_eq!(plan.streamed_file_bytes, total - resident);
        }
    }
}

/// Issue 14, item 6: plans were limited by host memory on every device.
#[test]
fn a_device_with_memory_of_its_own_is_planned_by_that() {
    let opened = opened("llama-tiny");
    let plan = |host: u64, device: u64| {
        let device = DeviceMemory::Own { limit: Some(device) };
        opened.plan_within(&WORK, &MemoryLimits { host: Some(host), device })
    };
    // Other tests of this process may allocate meanwhile, which counts for the host: then it is planned again.
    let (free, on_device, resident) = loop {
        let free = opened.plan(&WORK, None);
        let host = free.needs.baseline_bytes + (1 << 20);
        let on_device = free.peak_bytes - free.needs.baseline_bytes;
        let resident = plan(host, on_device);
        let after = opened.plan(&WORK, None);
        if after.needs.baseline_bytes == free.needs.baseline_bytes {
            break (free, on_device, resident);
        }
    };
    let weights: u64 = free.parts.iter().map(|part| part.bytes).sum();
    // The host has no room for the weights, and needs none.
    assert!(resident.fits && resident.mode == Placement::Resident);
    assert_eq!(resident.device_bytes, Some(on_device));
    assert_eq!(resident.host_bytes, free.needs.baseline_bytes);
    // The device has no room for all weights, and all of the host's does not help.
    let streamed = plan(1 << 40, on_device - weights / 2);
    assert!(streamed.fits && streamed.mode != Placement::Resident);
    assert!(streamed.device_bytes.unwrap() <= on_device - weights / 2);
    // What is short is named.
    let ModelError::Memory { allowed, .. } = plan(1 << 20, 1 << 40).checked().unwrap_err() else {
        panic!("the host has too little memory")
    };
    assert_eq!(allowed, 1 << 20);
    let ModelError::Memory { allowed, .. } = plan(1 << 40, 1 << 10).checked().unwrap_err() else {
        panic!("the device has too little memory")
    };
    assert_eq!(allowed, 1 << 10);
}
