//! Streaming against what it can't do without, and decoding against a bare loop, each as a
//! ratio in one run.
//!
//!     cargo bench --workspace --bench stream -- [--mib 2048] [--dtype bf16] [--tokens 64]
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
    let (dtype, label) = match value("--dtype").as_deref() {
        Some("bf16") => (made::Dtype::Bf16, "bf16"),
        None | Some("f32") => (made::Dtype::F32, "f32"),
        Some(other) => panic!("--dtype takes f32 or bf16, not {other}"),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bytes = made::llama(folder.path(), mib << 20, dtype);
    println!("model of {} MiB as {label}, {tokens} tokens", bytes >> 20);
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
        // The prefetcher's own time for reading and converting, while products run beside it: on
        // few cores that is more than it would take alone, so the ratio flatters.
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

/// Against a loop over Burn's operations that does the same.
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
        let mut cache = Vec::new();
        for at in 0..4 {
            bare.step(&mut cache, at);
        }
        let start = Instant::now();
        for at in 4..19 {
            bare.step(&mut cache, at);
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

/// A Llama as someone would write it with Burn: weights as Burn's `Linear` has them, a cache
/// that grows by concatenation.
struct Bare {
    blocks: Vec<[Tensor<2>; 7]>,
    scale: Tensor<2>,
    head: Tensor<2>,
}

type Cached = (Tensor<4>, Tensor<4>);

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
        Self {
            blocks: (0..blocks).map(|_| block()).collect(),
            scale: random(1, 768),
            head: random(768, 4096),
        }
    }

    fn norm(&self, x: Tensor<2>) -> Tensor<2> {
        x.clone() / ((x.clone() * x).mean_dim(1) + 1e-5).sqrt() * self.scale.clone()
    }

    fn step(&self, cache: &mut Vec<Cached>, at: usize) {
        let mut x = Tensor::<2>::ones([1, 768], &Device::flex());
        let angle = Tensor::<4>::full([1, 1, 1, 32], at as f32 * 0.1, &Device::flex());
        let (cos, sin) = (angle.clone().cos(), angle.sin());
        let rotate = |x: Tensor<4>| {
            let (a, b) = (x.clone().narrow(3, 0, 32), x.narrow(3, 32, 32));
            let first = a.clone() * cos.clone() - b.clone() * sin.clone();
            Tensor::cat(vec![first, b * cos.clone() + a * sin.clone()], 3)
        };
        for (number, [q, k, v, o, gate, up, down]) in self.blocks.iter().enumerate() {
            let normal = self.norm(x.clone());
            let q = rotate(normal.clone().matmul(q.clone()).reshape([1, 12, 1, 64]));
            let mut k = rotate(normal.clone().matmul(k.clone()).reshape([1, 4, 1, 64]));
            let mut v = normal.matmul(v.clone()).reshape([1, 4, 1, 64]);
            if let Some((keys, values)) = cache.get(number) {
                k = Tensor::cat(vec![keys.clone(), k], 2);
                v = Tensor::cat(vec![values.clone(), v], 2);
                cache[number] = (k.clone(), v.clone());
            } else {
                cache.push((k.clone(), v.clone()));
            }
            let scores = (q * 0.125).reshape([1, 4, 3, 64]).matmul(k.swap_dims(2, 3));
            let seen = activation::softmax(scores, 3).matmul(v).reshape([1, 768]);
            x = x + seen.matmul(o.clone());
            let normal = self.norm(x.clone());
            let gate = activation::silu(normal.clone().matmul(gate.clone()));
            x = x + (gate * normal.matmul(up.clone())).matmul(down.clone());
        }
        let _ = self.norm(x).matmul(self.head.clone()).into_data();
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
