//! Generation: a cache, a batch and a budget change nothing about the tokens.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::generate::sample::{Sampler, Sampling};
use surefoot_models::generate::tokens::{self, FinishReason, Request};
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, Model, Opened, TokenBatch, Want};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn open(name: &str, share: f64) -> Model {
    let opened = Opened::new(&fixture(name)).unwrap();
    let work = Work { batch: 3, prompt: 12, new_tokens: 16, want: tokens::WANT };
    let plan = opened.plan_with_share(&work, share);
    opened.load(&plan, &Device::flex(), Arc::default()).unwrap()
}

const DECODERS: [&str; 7] = [
    "gpt2-tiny",
    "llama-tiny",
    "neox-tiny",
    "qwen2-tiny",
    "mistral-window",
    "qwen3-bias-tied",
    "llama-mqa-headdim-bias",
];

fn prompts() -> Vec<Vec<u32>> {
    vec![vec![5, 9, 17, 2, 40, 33, 8, 60, 21, 7, 3], vec![11], vec![70, 1, 1, 30, 52]]
}

fn request(prompts: Vec<Vec<u32>>, sampling: Sampling) -> Request {
    Request { prompts, max_tokens: 12, ends: Vec::new(), sampling }
}

fn generated(model: &Model, request: &Request) -> Vec<Vec<u32>> {
    let all = model.generate(request, |_, _| ControlFlow::Continue(())).unwrap();
    all.into_iter().map(|one| one.tokens).collect()
}

/// Without a cache: the whole sequence again for every token.
fn generated_afresh(model: &Model, prompt: &[u32], sampling: Sampling) -> Vec<u32> {
    let mut sampler = Sampler::new(sampling);
    let mut ids = prompt.to_vec();
    for _ in 0..12 {
        let batch = TokenBatch::new(std::slice::from_ref(&ids), model.blueprint().vocab).unwrap();
        let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
        let logits = model.forward(&batch, want).unwrap().logits.unwrap();
        ids.push(sampler.choose(logits.row(0)));
    }
    ids.split_off(prompt.len())
}

#[test]
fn a_batch_with_a_cache_gives_what_each_prompt_gives_alone_without_one() {
    let bold = Sampling { temperature: 1.0, top_k: Some(20), top_p: Some(0.9), seed: 3 };
    for name in DECODERS {
        let model = open(name, 1.0);
        for sampling in [Sampling::GREEDY, bold] {
            let batched = generated(&model, &request(prompts(), sampling));
            for (prompt, tokens) in prompts().iter().zip(batched) {
                assert_eq!(tokens, generated_afresh(&model, prompt, sampling), "{name}");
                let alone = generated(&model, &request(vec![prompt.clone()], sampling));
                assert_eq!(alone, [tokens], "{name}");
            }
        }
    }
}

#[test]
fn streaming_gives_the_same_tokens_and_reads_each_weight_once_a_step() {
    for name in DECODERS {
        let request = request(prompts(), Sampling::GREEDY);
        let resident = generated(&open(name, 1.0), &request);
        for share in [0.0, 0.4] {
            let model = open(name, share);
            let loaded = model.meter().read().file_bytes;
            assert_eq!(generated(&model, &request), resident, "{name}");
            let opened = Opened::new(&fixture(name)).unwrap();
            let work = Work { batch: 3, prompt: 12, new_tokens: 16, want: tokens::WANT };
            let streamed = opened.plan_with_share(&work, share).streamed_file_bytes;
            assert!(streamed > 0);
            assert_eq!(model.meter().read().file_bytes - loaded, 12 * streamed, "{name}");
        }
    }
}

#[test]
fn sequences_end_by_themselves_without_ending_the_others() {
    let model = open("llama-tiny", 1.0);
    let free = generated(&model, &request(prompts(), Sampling::GREEDY));
    let end = free[0][4];
    let first = free[0].iter().position(|token| *token == end).unwrap();
    let mut asked = request(prompts(), Sampling::GREEDY);
    asked.ends = vec![end];
    let ended = model.generate(&asked, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(ended[0].tokens, free[0][..first]);
    assert_eq!(ended[0].ending, FinishReason::EndOfText);
    for (ended, free) in ended.iter().zip(&free) {
        assert_eq!(ended.tokens, free[..ended.tokens.len()]);
        assert!(ended.ending == FinishReason::EndOfText || ended.tokens.len() == 12);
    }
    let stopped = model
        .generate(&request(prompts(), Sampling::GREEDY), |number, _| match number {
            1 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .unwrap();
    assert_eq!((stopped[1].tokens.len(), stopped[1].ending), (1, FinishReason::Stopped));
    assert_eq!(stopped[2].tokens, free[2]);
}

#[test]
fn learned_positions_end_a_text_and_refuse_a_prompt_that_is_too_long() {
    let model = open("gpt2-tiny", 1.0);
    let long = |tokens| Request {
        prompts: vec![vec![7; tokens]],
        max_tokens: 8,
        ends: Vec::new(),
        sampling: Sampling::GREEDY,
    };
    let full = model.generate(&long(126), |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((full[0].tokens.len(), full[0].ending), (3, FinishReason::ContextFull));
    let error = model.generate(&long(129), |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("128 positions"), "{error}");
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let error = TokenBatch::new(&[vec![1, 2], vec![256]], 256).unwrap_err();
    assert!(error.to_string().contains("token 256"), "{error}");
    assert!(TokenBatch::new(&[vec![1], vec![]], 256).is_err());
    assert!(TokenBatch::new(&[], 256).is_err());
}

#[test]
fn an_encoder_does_not_generate() {
    let opened = Opened::new(&fixture("bert-tiny")).unwrap();
    let work = Work { batch: 1, prompt: 4, new_tokens: 0, want: tokens::WANT };
    let plan = opened.plan(&work, None);
    let model = opened.load(&plan, &Device::flex(), Arc::default()).unwrap();
    let error = model
        .generate(&request(prompts(), Sampling::GREEDY), |_, _| ControlFlow::Continue(()))
        .unwrap_err();
    assert!(error.to_string().contains("can't generate"), "{error}");
}
