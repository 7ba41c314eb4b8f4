//! Sequences that are decoded together, a token each at a time, have the logits of a pass over the whole text on the CPU: on another
//! device blocks are decoded by kernels of their own. `SUREFOOT_TEST_DEVICE` names a device other than the CPU.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use surefoot_models::generate::session::{Decoding, Limits};
use surefoot_models::generate::tokens::WANT;
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, Model, Opened, Rectangle, StepOutput, TokenBatch, Want};
use testkit::model_folders::{FolderDtype, llama};

/// Tokens that are decoded behind the prompts. On devices that record steps, the last ones repeat a recording.
const STEPS: usize = 7;
/// The prompts' lengths: those that are shorter are padded in the cache.
const LENGTHS: [usize; 3] = [9, 4, 7];

fn device() -> Device {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => surefoot::device::open(name.parse().unwrap()).unwrap().burn().clone(),
        Err(_) => Device::flex(),
    }
}

fn load(folder: &Path, device: &Device) -> Model {
    let work = Work { batch: LENGTHS.len(), prompt: 16, new_tokens: STEPS, want: WANT };
    let opened = Opened::new(folder).unwrap();
    let plan = opened.plan_with_share(&work, 1.0);
    opened.load(&plan, device, Arc::default()).unwrap()
}

/// Fixtures whose blocks the kernels decode (one weight for queries, keys and values or three, biases, norms of heads, windows, layers
/// without rotation, factors, a fused gate), and some that they leave to others.
const FIXTURES: [&str; 13] = [
    "gemma2-tiny",
    "gpt2-tiny",
    "granite-tiny",
    "llama-mqa-headdim-bias",
    "llama-tiny",
    "mistral-window",
    "mixtral-tiny",
    "neox-tiny",
    "phi3-partial",
    "qwen2-tiny",
    "qwen3",
    "qwen3-bias-tied",
    "smollm3-tiny",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Token `at` of sequence `number`; the same on each device, whatever the logits say.
fn token(number: usize, at: usize) -> u32 {
    ((at * 31 + number * 17 + 5) % 96) as u32
}

fn text(number: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| token(number, at)).collect()
}

/// The logits behind each sequence, from a pass over all of it.
fn expected(model: &Model, more: usize) -> Vec<Vec<f32>> {
    let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
    let of = |(number, length): (usize, &usize)| {
        let batch = TokenBatch::new(&[text(number, length + more)], model.blueprint().vocab);
        model.forward(&batch.unwrap(), want).unwrap().logits.unwrap().numbers
    };
    LENGTHS.iter().enumerate().map(of).collect()
}

fn check(folder: &Path, device: &Device) {
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let plain = load(folder, &Device::flex());
    let model = load(folder, device);
    let mut limits = Limits { rows: 4, positions: 64, cache_tokens: 0, pass_tokens: 64 };
    limits.cache_tokens = limits.most_cache_tokens();
    let mut decoding = Decoding::new(&model, limits);
    let mut passes = model.passes();
    let prompts: Vec<Vec<u32>> =
        LENGTHS.iter().enumerate().map(|(number, length)| text(number, *length)).collect();
    decoding.join(&mut passes, &prompts, Rectangle::default()).unwrap();
    for step in 1..=STEPS {
        let last: Vec<u32> = LENGTHS
            .iter()
            .enumerate()
            .map(|(number, length)| token(number, length + step - 1))
            .collect();
        let rows = decoding.step(&mut passes, &last, 0).unwrap();
        for (number, expected) in expected(&plain, step).iter().enumerate() {
            let row = rows.row(number);
            let worst = row.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 2e-4, "{name}: token {step} of sequence {number}: off by {worst}");
        }
    }
}

#[test]
fn tokens_that_are_decoded_together_have_the_logits_of_a_whole_pass() {
    let device = device();
    for name in FIXTURES {
        check(&folder(name), &device);
    }
    check_changes(&device);
    check_cleared(&device);
    check_many(&device);
    // Here, and not in a test of its own: launches of other threads would be counted too.
    if device != Device::flex() {
        check_launches(&device);
    }
}

/// Sequences that leave and join, and a cache that grows, between steps that may be repeated from a recording. Every other step asks for the
/// most likely tokens alone.
fn check_changes(device: &Device) {
    let folder = folder("llama-tiny");
    let (plain, model) = (load(&folder, &Device::flex()), load(&folder, device));
    let mut limits = Limits { rows: 4, positions: 64, cache_tokens: 0, pass_tokens: 64 };
    limits.cache_tokens = limits.most_cache_tokens();
    let mut decoding = Decoding::new(&model, limits);
    let mut passes = model.passes();
    // What each row of the cache has: the number of its sequence and how many tokens of it.
    let mut live: Vec<(usize, usize)> = vec![(0, 9), (1, 4), (2, 7)];
    let prompts: Vec<Vec<u32>> =
        live.iter().map(|(number, length)| text(*number, *length)).collect();
    decoding.join(&mut passes, &prompts, Rectangle::default()).unwrap();
    let behind = |number: usize, length: usize| {
        let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
        let batch = TokenBatch::new(&[text(number, length)], plain.blueprint().vocab);
        plain.forward(&batch.unwrap(), want).unwrap().logits.unwrap().numbers
    };
    let close = |what: &str, is: &[f32], should: &[f32]| {
        let worst = is.iter().zip(should).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 2e-4, "{what}: off by {worst}");
    };
    let mut chosen = 0;
    for turn in 0..30 {
        if turn == 9 {
            decoding.leave(0);
            live.swap_remove(0);
        }
        // One that is longer than all that are there, and one that is shorter.
        for (number, length) in [(4, 40), (3, 5)].into_iter().filter(|(n, _)| turn == 30 - 6 * n) {
            let joining = [text(number, length)];
            let rows = decoding.join(&mut passes, &joining, Rectangle::default()).unwrap();
            close(&format!("prompt {number}"), rows.row(0), &behind(number, length));
            live.push((number, length));
        }
        let last: Vec<u32> = live.iter().map(|(number, length)| token(*number, *length)).collect();
        let output = decoding.step_choosing(&mut passes, &last, 0, turn % 2 == 0).unwrap();
        for (row, (number, length)) in live.iter_mut().enumerate() {
            *length += 1;
            let (expected, what) = (behind(*number, *length), format!("turn {turn}: {number}"));
            match &output {
                StepOutput::Logits(rows) => close(&what, rows.row(row), &expected),
                StepOutput::MostLikely(tokens) => {
                    let most = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    close(&what, &[expected[tokens[row] as usize]], &[most]);
                    chosen += 1;
                }
            }
        }
    }
    // Recordings of steps find the tokens themselves.
    assert_eq!(chosen > 0, *device != Device::flex());
}

/// A session that was cleared has room for as many sequences as before, and they see nothing of those that were there.
fn check_cleared(device: &Device) {
    let folder = folder("llama-tiny");
    let (plain, model) = (load(&folder, &Device::flex()), load(&folder, device));
    let mut limits = Limits { rows: 4, positions: 64, cache_tokens: 0, pass_tokens: 64 };
    // Room for two sequences of up to 24 tokens, and not for one behind columns that others had.
    limits.cache_tokens = limits.least_cache_tokens();
    let mut decoding = Decoding::new(&model, limits);
    let mut passes = model.passes();
    let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
    for (turn, lengths) in [[20, 9], [4, 24]].into_iter().enumerate() {
        let joining = lengths.map(|length| text(turn, length));
        let rows = decoding.join(&mut passes, &joining, Rectangle::default()).unwrap();
        for (row, tokens) in joining.into_iter().enumerate() {
            let batch = TokenBatch::new(&[tokens], plain.blueprint().vocab).unwrap();
            let expected = plain.forward(&batch, want).unwrap().logits.unwrap().numbers;
            let worst = rows.row(row).iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0.0, f32::max);
            assert!(worst <= 2e-4, "turn {turn}: row {row}: off by {worst}");
        }
        decoding.clear();
        assert!(decoding.is_empty());
    }
}

/// So many sequences that products are made in parts and heads share a kernel's work, in a model that is large enough for that; and a prompt
/// whose attention is made of products, which joins them.
fn check_many(device: &Device) {
    let folder = tempfile::tempdir().unwrap();
    llama(folder.path(), 48 << 20, FolderDtype::F32);
    let (plain, model) = (load(folder.path(), &Device::flex()), load(folder.path(), device));
    let mut limits = Limits { rows: 66, positions: 256, cache_tokens: 0, pass_tokens: 256 };
    limits.cache_tokens = limits.most_cache_tokens();
    let mut decoding = Decoding::new(&model, limits);
    let mut passes = model.passes();
    let mut lengths: Vec<usize> = (0..65).map(|number| 2 + number % 3).collect();
    let texts = |lengths: &[usize]| -> Vec<Vec<u32>> {
        lengths.iter().enumerate().map(|(number, length)| text(number, *length)).collect()
    };
    decoding.join(&mut passes, &texts(&lengths), Rectangle::default()).unwrap();
    let check = |what: &str, number: usize, length: usize, row: &[f32]| {
        let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
        let batch = TokenBatch::new(&[text(number, length)], plain.blueprint().vocab).unwrap();
        let expected = plain.forward(&batch, want).unwrap().logits.unwrap().numbers;
        let size = expected.iter().fold(0.0f32, |size, number| size.max(number.abs()));
        let worst = row.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-3 * size, "{what}: sequence {number}: off by {worst} of {size}");
    };
    for turn in 0..8 {
        if turn == 6 {
            let rows = decoding.join(&mut passes, &[text(65, 130)], Rectangle::default()).unwrap();
            check("a long prompt", 65, 130, rows.row(0));
            lengths.push(130);
        }
        let last: Vec<u32> =
            lengths.iter().enumerate().map(|(number, length)| token(number, *length)).collect();
        let rows = decoding.step(&mut passes, &last, 0).unwrap();
        lengths.iter_mut().for_each(|length| *length += 1);
        for number in [0, 22, 64, 65].into_iter().filter(|number| *number < lengths.len()) {
            check(&format!("turn {turn}"), number, lengths[number], rows.row(number));
        }
    }
}

/// What the host pays for a token of a Llama: five launches a block, the last norm, the head, and what reading takes.
fn check_launches(device: &Device) {
    let model = load(&folder("llama-tiny"), device);
    let blocks = model.blueprint().blocks.len() as u64;
    let mut limits = Limits { rows: 1, positions: 64, cache_tokens: 0, pass_tokens: 64 };
    limits.cache_tokens = limits.most_cache_tokens();
    let mut decoding = Decoding::new(&model, limits);
    let mut passes = model.passes();
    decoding.join(&mut passes, &[text(0, 5)], Rectangle::default()).unwrap();
    let mut count = || {
        let step = || decoding.step(&mut passes, &[7], 0).unwrap();
        let launches = surefoot_ops::count_launches(step).1;
        (launches.values().sum::<u64>(), launches)
    };
    let (first, launches) = count();
    assert!(first <= 5 * blocks + 3, "{first} for {blocks} blocks: {launches:?}");
    // The fourth step is run and recorded, and from then on none is described anew.
    for _ in 2..=4 {
        count();
    }
    let (repeated, launches) = count();
    assert_eq!(repeated, 0, "{launches:?}");
    // A prompt: the norms, products and what is behind them, one launch that writes into the cache and one that attends. In f32 each weight has
    // a product of its own. Beside the blocks the last norm and the head. Nothing is copied into the cache.
    decoding.leave(0);
    let join = || decoding.join(&mut passes, &[text(1, 20)], Rectangle::default()).unwrap();
    let launches = surefoot_ops::count_launches(join).1;
    let all = launches.values().sum::<u64>();
    assert!(all <= 14 * blocks + 8, "{all} for {blocks} blocks: {launches:?}");
}
