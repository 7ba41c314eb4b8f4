//! Streaming against what it can't do without, and decoding against a bare loop, each as a
//! ratio in one run.
//!
//!     cargo bench -p surefoot-models --bench stream -- [--mib 2048] [--dtype bf16] [--tokens 64]
//!
//! Makes a Llama of that size in the temporary folder and prints one line a measurement.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor, activation};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::tokens::{self, Request};
use surefoot_models::stream::needs::Work;
use surefoot_models::{Batch, Logits, Model, Opened, Want};

#[path = "../../surefoot-cli/tests/made/mod.rs"]
mod made;

const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
const ROUNDS: usize = 5;

fn main() {
    let value = |name: &str| {
        let mut arguments = std::env::args().skip_while(move |argument| argument != name);
        arguments.nth(1)
    };
    let mib: u64 = value("--mib").map_or(2048, |text| text.parse().expect("--mib takes a number"));
    let tokens: usize =
        value("--tokens").map_or(64, |text| text.parse().expect("--tokens takes a number"));
    let dtype = match value("--dtype").as_deref() {
        Some("bf16") => made::Dtype::Bf16,
        _ => made::Dtype::F32,
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bytes = made::llama(folder.path(), mib << 20, dtype);
    println!("model of {} MiB as f32, {tokens} tokens", bytes >> 20);
    forward(folder.path(), tokens);
    decode(folder.path());
}

fn open(folder: &Path, work: &Work, share: f64) -> Model {
    let opened = Opened::new(folder).expect("the model opens");
    let plan = opened.plan_with_share(work, share);
    opened.load(&plan, &Device::flex(), Arc::default()).expect("the model loads")
}

/// Interleaved, the median of each: a noisy machine slows all of them.
fn forward(folder: &Path, tokens: usize) {
    let work = Work { batch: 1, prompt: tokens, new_tokens: 0, want: WANT };
    let ids: Vec<u32> = (0..tokens as u32).collect();
    let batch = Batch::new(&[ids], 4096).expect("ids of the vocabulary");
    let resident = open(folder, &work, 1.0);
    let streamed = open(folder, &work, 0.25);
    let run = |model: &Model| {
        let start = Instant::now();
        model.forward(&batch, WANT).expect("the model runs");
        start.elapsed().as_secs_f64()
    };
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(run(&resident));
        times[1].push(run(&streamed));
        // Reading and converting alone: what the streamed share costs without computing.
        let before = streamed.meter().read();
        run(&streamed);
        let after = streamed.meter().read();
        times[2].push(after.reading + after.converting - before.reading - before.converting);
    }
    let [resident, streamed, feeding] = times.map(median);
    let least = resident.max(feeding);
    println!(
        "forward: resident {resident:.3} s, a quarter resident {streamed:.3} s, reading and \
         converting {feeding:.3} s; ratio {:.3} (at most 1.15)",
        streamed / least
    );
}

/// Against the same products by Burn alone, without a cache, attention or a head.
fn decode(folder: &Path) {
    let work = Work { batch: 1, prompt: 4, new_tokens: 16, want: tokens::WANT };
    let model = open(folder, &work, 1.0);
    let request = Request {
        prompts: vec![vec![1, 2, 3, 4]],
        max_tokens: 16,
        ends: Vec::new(),
        sampling: Sampling::GREEDY,
    };
    let bare = Bare::new(model.blueprint().blocks.len());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut first = None;
        model
            .generate(&request, |_, _| {
                first.get_or_insert_with(Instant::now);
                ControlFlow::Continue(())
            })
            .expect("the model generates");
        let begun = first.unwrap_or(start);
        ours.push(begun.elapsed().as_secs_f64() / 15.0);
        let start = Instant::now();
        for _ in 0..15 {
            bare.step();
        }
        theirs.push(start.elapsed().as_secs_f64() / 15.0);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "decode: {:.2} ms a token, bare Burn {:.2} ms; ratio {:.3} (at most 1.1)",
        ours * 1e3,
        theirs * 1e3,
        ours / theirs
    );
}

/// A Llama's products as someone would write them with Burn: weights as `nn.Linear` has them.
struct Bare {
    blocks: Vec<[Tensor<2>; 7]>,
    head: Tensor<2>,
}

impl Bare {
    fn new(blocks: usize) -> Self {
        let device = Device::flex();
        let random = |inputs: usize, outputs: usize| {
            Tensor::<2>::random([inputs, outputs], Distribution::Uniform(-0.05, 0.05), &device)
        };
        let block = || {
            [
                random(768, 768),
                random(768, 256),
                random(768, 256),
                random(768, 768),
                random(768, 2048),
                random(768, 2048),
                random(2048, 768),
            ]
        };
        Self { blocks: (0..blocks).map(|_| block()).collect(), head: random(768, 4096) }
    }

    fn step(&self) {
        let mut x = Tensor::<2>::ones([1, 768], &Device::flex());
        for [q, k, v, o, gate, up, down] in &self.blocks {
            let normal = x.clone() / ((x.clone() * x.clone()).mean_dim(1) + 1e-5).sqrt();
            let q = normal.clone().matmul(q.clone());
            let _k = normal.clone().matmul(k.clone());
            let _v = normal.matmul(v.clone());
            x = x + q.matmul(o.clone());
            let normal = x.clone() / ((x.clone() * x.clone()).mean_dim(1) + 1e-5).sqrt();
            let gate = activation::silu(normal.clone().matmul(gate.clone()));
            x = x + (gate * normal.matmul(up.clone())).matmul(down.clone());
        }
        let _ = x.matmul(self.head.clone()).into_data();
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
