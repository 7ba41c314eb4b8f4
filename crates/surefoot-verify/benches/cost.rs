//! What looking at every site costs: a pass with sketches against the same pass without, both
//! streamed, as a ratio in one run.
//!
//!     cargo bench --workspace --bench cost -- [--mib 512] [--challenges 32] [--tokens 32]

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use surefoot_models::{Logits, Opened, TokenBatch, Want};
use surefoot_verify::capture::{self, Disturbance};
use surefoot_verify::challenge::{ChallengeSet, public_key};
use testkit::model_folders;

const ROUNDS: usize = 5;

fn main() {
    let value = |name: &str, usual: usize| {
        let mut arguments = std::env::args().skip_while(move |argument| argument != name);
        arguments.nth(1).map_or(usual, |text| text.parse().expect("a number"))
    };
    let (challenges, tokens) = (value("--challenges", 32), value("--tokens", 32));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bytes = model_folders::llama(
        folder.path(),
        (value("--mib", 512) as u64) << 20,
        model_folders::FolderDtype::F32,
    );
    let opened = Opened::new(folder.path()).expect("the model opens");
    let set = ChallengeSet::keyed(public_key(), "cost", opened.blueprint.vocab, challenges, tokens)
        .expect("challenges");
    let plan = opened.plan_with_share(&capture::work(&opened, challenges, tokens), 0.0);
    let model = opened.load(&plan, &Device::flex(), Arc::default()).expect("the model loads");
    let batch = TokenBatch::new(&set.sequences, model.blueprint().vocab).expect("a batch");
    let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
    println!("model of {} MiB, streamed, {challenges} challenges of {tokens} tokens", bytes >> 20);
    let (mut plain, mut observed) = (Vec::new(), Vec::new());
    // Interleaved: a noisy machine slows both.
    for _ in 0..ROUNDS {
        let start = Instant::now();
        model.forward(&batch, want).expect("the model runs");
        plain.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        capture::capture(&model, &set.sequences, 0, 8192, challenges, Disturbance::None, || {})
            .expect("the model runs");
        observed.push(start.elapsed().as_secs_f64());
    }
    let (plain, observed) = (median(plain), median(observed));
    println!(
        "plain {plain:.3} s, with sketches at {} sites {observed:.3} s: ratio {:.3} (at most 1.1)",
        model.blueprint().blocks.len() + 3,
        observed / plain
    );
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
