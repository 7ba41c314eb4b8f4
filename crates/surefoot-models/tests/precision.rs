//! Half precision: near fp32, not fp32, and half the memory. The tolerance is relative to the
//! largest logit: 3 % in bf16, whose numbers are 0.4 % apart, and 0.5 % in fp16 (0.05 % apart).
//! `SUREFOOT_TEST_DEVICE` names another device than the CPU, which must compute in fp16.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::folder::header::WeightDtype;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Plan;
use surefoot_models::{Logits, Opened, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::All, hidden: false, last_hidden: false };

/// Every way a matrix lies in its file and every dtype it has there.
const MODELS: [&str; 7] = [
    "llama-tiny",
    "gpt2-tiny",
    "gpt2-noprefix",
    "neox-tiny",
    "qwen3-bias-tied",
    "llama-f16-sharded",
    "llama-yarn",
];

fn device() -> Device {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => surefoot::device::open(name.parse().unwrap()).unwrap().burn().clone(),
        Err(_) => Device::flex(),
    }
}

fn run(name: &str, compute: WeightDtype, share: f64) -> (Vec<f32>, Plan) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let opened = Opened::new(&folder).unwrap().on(&device(), compute);
    let work = Work { batch: 1, prompt: 12, new_tokens: 0, want: WANT };
    let plan = opened.plan_with_share(&work, share);
    let model = opened.load(&plan, &device(), Arc::default()).unwrap();
    let ids = vec![5, 9, 17, 2, 40, 33, 8, 60, 21, 7, 3, 1];
    let batch = TokenBatch::new(&[ids], model.blueprint().vocab).unwrap();
    (model.forward(&batch, WANT).unwrap().logits.unwrap().numbers, plan)
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

#[test]
fn fp16_and_bf16_are_near_fp32_and_the_same_however_weights_come() {
    // A GPU is only asked for what all of them have.
    let on_cpu = device() == Device::flex();
    for name in MODELS {
        let (exact, whole) = run(name, WeightDtype::F32, 1.0);
        for (compute, allowed) in [(WeightDtype::F16, 0.005), (WeightDtype::Bf16, 0.03)] {
            if compute == WeightDtype::Bf16 && !on_cpu {
                continue;
            }
            let (resident, plan) = run(name, compute, 1.0);
            let far = distance(&resident, &exact);
            assert!(far <= allowed, "{name} in {compute:?} is off by {far}");
            assert!(far > 1e-6, "{name} was not run in {compute:?}");
            let (streamed, _) = run(name, compute, 0.3);
            assert!(distance(&streamed, &resident) <= allowed / 4.0, "{name} {compute:?}");
            let stored_in_half = name == "llama-f16-sharded" && on_cpu;
            let factor = if stored_in_half { 1 } else { 2 };
            assert_eq!(plan.resident_bytes * factor, whole.resident_bytes, "{name} {compute:?}");
        }
    }
}
