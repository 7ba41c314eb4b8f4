//! Sequences that come and go get the tokens they get alone.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;

use super::*;
use crate::generate::sample::{Sampler, Sampling};
use crate::generate::tokens::Request;
use crate::run::opened::Opened;
use crate::stream::needs::Work;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The model, with a `share` of its matrices in memory.
pub(in crate::generate) fn opened(name: &str, share: f64) -> Model {
    let work = Work { batch: 1, prompt: 8, new_tokens: 8, want: WANT };
    let opened = Opened::new(&fixture(name)).unwrap();
    let plan = opened.plan_with_share(&work, share);
    opened.load(&plan, &Device::flex(), Arc::default()).unwrap()
}

pub(in crate::generate) fn prompt(number: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| ((at * 31 + number * 17 + 5) % 96) as u32).collect()
}

pub(in crate::generate) fn choose(logits: &[f32]) -> u32 {
    Sampler::new(Sampling::GREEDY).choose(logits)
}

pub(in crate::generate) fn alone(model: &Model, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let request = Request {
        prompts: vec![prompt.to_vec()],
        max_tokens: tokens,
        ends: Vec::new(),
        sampling: Sampling::GREEDY,
    };
    model.generate(&request, |_, _| ControlFlow::Continue(())).unwrap().remove(0).tokens
}

/// Sequences that join and leave at different steps, by a script: at which step each joins,
/// its prompt's length, and how many tokens it stays for.
fn together(model: &Model, limits: Limits, script: &[(usize, usize, usize)]) {
    let mut decoding = Decoding::new(model, limits);
    let mut passes = model.passes();
    let mut live: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut left = script.len();
    for step in 0.. {
        let joining: Vec<usize> =
            (0..script.len()).filter(|&number| script[number].0 == step).collect();
        if !joining.is_empty() {
            let prompts: Vec<_> = joining.iter().map(|&n| prompt(n, script[n].1)).collect();
            let least = match step % 2 {
                0 => Rectangle::default(),
                _ => Rectangle { rows: 4, width: 32 },
            };
            let logits = decoding.join(&mut passes, &prompts, least).unwrap();
            for (row, &number) in joining.iter().enumerate() {
                live.push((number, vec![choose(logits.row(row))]));
            }
        }
        let mut row = 0;
        while row < live.len() {
            let (number, tokens) = &live[row];
            if tokens.len() < script[*number].2 {
                row += 1;
                continue;
            }
            let expected = alone(model, &prompt(*number, script[*number].1), tokens.len());
            assert_eq!(*tokens, expected, "sequence {number}");
            decoding.leave(row);
            live.swap_remove(row);
            left -= 1;
        }
        if left == 0 {
            return;
        }
        if !live.is_empty() {
            let last: Vec<u32> = live.iter().map(|(_, tokens)| tokens[tokens.len() - 1]).collect();
            let logits =
                decoding.step(&mut passes, &last, if step % 3 == 0 { 8 } else { 0 }).unwrap();
            for (row, (_, tokens)) in live.iter_mut().enumerate() {
                tokens.push(choose(logits.row(row)));
            }
        }
    }
}

/// Limits without a limit of bytes.
pub(in crate::generate) fn limits(rows: usize, positions: usize) -> Limits {
    let mut limits = Limits { rows, positions, cache_tokens: 0, pass_tokens: 8192 };
    limits.cache_tokens = limits.most_cache_tokens();
    limits
}

const SCRIPT: [(usize, usize, usize); 9] = [
    (0, 3, 30),
    (0, 7, 4),
    (2, 1, 20),
    // Longer than all that is there: the others are moved.
    (5, 40, 12),
    (6, 2, 3),
    (6, 2, 9),
    (6, 20, 1),
    (40, 5, 50),
    (41, 9, 30),
];

#[test]
fn sequences_that_come_and_go_get_the_tokens_they_get_alone() {
    for name in ["gpt2-tiny", "llama-tiny", "neox-tiny", "mistral-window", "qwen3-bias-tied"] {
        let model = opened(name, 1.0);
        together(&model, limits(8, 100), &SCRIPT);
    }
}

#[test]
fn streamed_weights_give_the_same() {
    together(&opened("qwen2-tiny", 0.0), limits(8, 100), &SCRIPT);
}

#[test]
fn a_cache_that_is_just_large_enough_is_moved_and_gives_the_same() {
    let model = opened("llama-tiny", 1.0);
    together(&model, limits(6, 60), &SCRIPT);
    let relay: Vec<_> = (0..20).map(|number| (number * 7, 5, 20)).collect();
    together(&model, limits(3, 25), &relay);
}

#[test]
fn prompts_that_are_run_in_parts_give_the_same() {
    for name in ["gpt2-tiny", "llama-tiny", "neox-tiny", "mistral-window"] {
        let model = opened(name, 1.0);
        for pass_tokens in [1, 7, 16] {
            together(&model, Limits { pass_tokens, ..limits(8, 100) }, &SCRIPT);
        }
    }
}

#[test]
fn a_small_cache_is_used_to_its_end_and_never_exceeded() {
    let model = opened("llama-tiny", 1.0);
    // Four sequences of 16 + 16 columns, or two of 48 + 16.
    let limits = Limits { cache_tokens: 128, ..limits(8, 100) };
    assert!(limits.fit(4, 16) && limits.fit(2, 48) && limits.fit(1, 100));
    assert!(!limits.fit(4, 17) && !limits.fit(9, 1));
    let relay = [(0, 3, 12), (0, 7, 9), (0, 5, 11), (0, 2, 10), (13, 40, 9), (14, 30, 8)];
    together(&model, limits, &relay);
    let mut decoding = Decoding::new(&model, limits);
    let mut passes = model.passes();
    decoding.join(&mut passes, &vec![vec![1; 16]; 4], Rectangle::default()).unwrap();
    for _ in 0..16 {
        assert!(decoding.rows * decoding.capacity <= 128);
        decoding.step(&mut passes, &[1; 4], 0).unwrap();
    }
    for row in [3, 2] {
        decoding.leave(row);
    }
    decoding.step(&mut passes, &[1; 2], 0).unwrap();
    assert!(decoding.rows * decoding.capacity <= 128, "rows that are not used are given up");
    let refused = decoding.join(&mut passes, &[vec![1; 50]], Rectangle::default());
    assert!(refused.is_err());
}

#[test]
fn what_is_too_much_is_refused_before_it_runs() {
    let model = opened("llama-tiny", 1.0);
    let mut decoding = Decoding::new(&model, limits(2, 10));
    let mut passes = model.passes();
    assert!(decoding.join(&mut passes, &[vec![1; 11]], Rectangle::default()).is_err());
    assert!(
        decoding.join(&mut passes, &[vec![1], vec![1], vec![1]], Rectangle::default()).is_err()
    );
    assert!(decoding.join(&mut passes, &[vec![1], vec![2]], Rectangle::default()).is_ok());
    assert!(decoding.step(&mut passes, &[1], 0).is_err());
    assert_eq!(decoding.len(), 2);
}
