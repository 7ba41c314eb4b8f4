//! Models with experts that do not all fit: the same numbers, and a cache whose hits are counted.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Model, Opened, TokenBatch, Want};

const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
const FIXTURES: [&str; 5] =
    ["mixtral-tiny", "qwen2-moe-tiny", "qwen2-moe-some", "qwen3-moe-tiny", "qwen3-moe-some"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn work() -> Work {
    Work { batch: 1, prompt: 1, new_tokens: 0, want: WANT }
}

fn logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let batch = TokenBatch::new(&[tokens.to_vec()], model.blueprint().vocab).unwrap();
    model.forward(&batch, WANT).unwrap().logits.unwrap().numbers
}

#[test]
fn a_model_whose_experts_do_not_fit_gives_the_same_numbers() {
    for name in FIXTURES {
        for choice in WeightChoice::ALL {
            let opened = Opened::new(&fixture(name)).unwrap().with_weights(choice);
            let load = |share: f64| {
                let plan = opened.plan_with_share(&work(), share);
                opened.load(&plan, &Device::flex(), Arc::default()).unwrap()
            };
            let resident = load(1.0);
            for share in [0.0, 0.3, 0.7, 0.95] {
                let model = load(share);
                for tokens in [&[5][..], &[9, 3, 77, 21, 4, 60]] {
                    let (got, expected) = (logits(&model, tokens), logits(&resident, tokens));
                    assert_eq!(got, expected, "{name} {choice} with {share} of it in memory");
                }
            }
        }
    }
}

/// One token at a time, as in decoding.
#[test]
fn experts_in_the_cache_are_not_read_again() {
    let opened = Opened::new(&fixture("mixtral-tiny")).unwrap();
    let experts: u64 = opened.plan(&work(), None).expert_bytes;
    assert_eq!(experts, 2 * 6 * 3 * 48 * 32 * 4);
    let counted = |share: f64| {
        let plan = opened.plan_with_share(&work(), share);
        let model = opened.load(&plan, &Device::flex(), Arc::default()).unwrap();
        for token in [5, 5, 5, 9, 9, 5, 31, 5] {
            logits(&model, &[token]);
        }
        let reading = model.meter().read();
        (plan.expert_cache_bytes, reading.expert_hits, reading.expert_loads)
    };
    // Two of six experts, three matrices each, two layers, eight tokens.
    let needed = 8 * 2 * 3 * 2;
    assert_eq!(counted(0.0), (0, 0, needed), "without a cache all are loaded");
    let (cache, hits, loads) = counted(0.9);
    assert!(cache > experts / 2 && cache < experts, "{cache} of {experts}");
    assert_eq!(hits + loads, needed);
    assert!(hits > loads, "{hits} hits, {loads} loads");
    assert_eq!(counted(1.0), (0, 0, 0), "all stay, so none is asked for");
}

#[test]
fn plans_give_what_the_rest_leaves_to_the_experts_and_stay_within_the_budget() {
    let opened = Opened::new(&fixture("qwen3-moe-tiny")).unwrap().above(0);
    let all = opened.plan(&work(), None);
    assert_eq!((all.mode, all.expert_cache_bytes), (Placement::Resident, 0));
    let budget = all.all_resident_bytes - all.expert_bytes / 2;
    let plan = opened.plan(&work(), Some(budget));
    assert!(plan.fits && plan.peak_bytes <= budget, "{} of {budget}", plan.peak_bytes);
    assert_eq!(plan.mode, Placement::Mixed);
    assert!(plan.expert_cache_bytes < plan.expert_bytes);
    // A token needs three of eight experts; some of those are in the cache.
    assert!(plan.streamed_file_bytes < plan.expert_bytes * 3 / 8, "{plan:?}");
    let least = opened.plan(&work(), Some(plan.least_bytes));
    assert!(least.fits && least.peak_bytes <= plan.least_bytes, "{least:?}");
}

#[test]
fn counts_that_can_not_be_are_refused_by_name() {
    for (key, value, expected) in [
        ("num_experts_per_tok", 7, "is 7, but there are 6 experts"),
        ("num_local_experts", 0, "'num_local_experts'"),
        ("num_local_experts", 1 << 20, "'num_local_experts'"),
        ("num_local_experts", 7, "has the shape [6, 32] where the configuration says [7, 32]"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let from = fixture("mixtral-tiny");
        std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors"))
            .unwrap();
        let config = std::fs::read(from.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        config[key] = value.into();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let error = Opened::new(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{key} = {value}: {error}");
    }
}
