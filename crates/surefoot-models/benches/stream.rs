//! Streaming against what it can't do without, peak memory against the budget, and decoding
//! against a bare loop.
//!
//!     cargo bench --workspace --bench stream -- [--mib 2048] [--dtype f32|bf16|q8|q4] [--tokens 64]
//!
//! Makes a Llama whose file has that size in the temporary folder, one in f32 and one in bf16, and one in 8 and one in 4 bits
//! as `surefoot quantize` makes them of the one in bf16, unless `--dtype` says which. Every case runs in a process of its own, so that its peak memory is
//! its own; those that are compared take turns, so that a noisy machine slows all of them.
//! Ends with 1 if a peak is over its budget or a ratio over its limit.

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor, activation};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::tokens::{self, Request};
use surefoot_models::quantize::{QuantizeOptions, quantize};
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::process;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Model, Opened, TokenBatch, Want};
use testkit::model_folders;

const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
const ROUNDS: usize = 7;
const BUDGETS: [u64; 4] = [100, 50, 25, 10];

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

fn number(name: &str, default: u64) -> u64 {
    argument(name).map_or(default, |text| text.parse().expect("a number"))
}

fn main() {
    let tokens = number("--tokens", 64) as usize;
    if let Some(folder) = argument("--serve") {
        return serve(Path::new(&folder), tokens, number("--budget", u64::MAX));
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        return println!("`cargo bench` runs this; under `cargo test` it only has to build");
    }
    let all = ["f32", "bf16", "q8", "q4"];
    let wanted = argument("--dtype");
    if let Some(other) = wanted.as_deref().filter(|wanted| !all.contains(wanted)) {
        panic!("--dtype takes f32, bf16, q8 or q4, not {other}");
    }
    let mut held = true;
    for label in all.into_iter().filter(|label| wanted.as_deref().is_none_or(|it| it == *label)) {
        let (folder, quantized) = (temporary(), temporary());
        let bytes = number("--mib", 2048) << 20;
        let choice = match label {
            "q8" => Some(WeightChoice::Q8),
            "q4" => Some(WeightChoice::Q4),
            _ => None,
        };
        let dtype = match label {
            "f32" => model_folders::FolderDtype::F32,
            _ => model_folders::FolderDtype::Bf16,
        };
        let stored = model_folders::llama(folder.path(), bytes, dtype);
        let Some(choice) = choice else {
            println!("{label}: {} MiB of matrices, {tokens} tokens", stored >> 20);
            held &= forward(folder.path(), stored, tokens);
            held &= decode(folder.path());
            continue;
        };
        let made = quantized.path().join(label);
        let options = QuantizeOptions::new(choice);
        quantize(folder.path(), &made, &options, |_, _| ()).expect("the model is quantised");
        drop(folder);
        let opened = Opened::new(&made).expect("the model opens");
        let size: u64 = opened.binding.matrices.iter().map(|matrix| matrix.file_bytes()).sum();
        println!("{label}: {} MiB of matrices, {tokens} tokens", size >> 20);
        held &= forward(&made, size, tokens);
    }
    std::process::exit(i32::from(!held));
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn work(tokens: usize) -> Work {
    Work { batch: 1, prompt: tokens, new_tokens: 0, want: WANT }
}

/// A process with the model, which does what it is told, line by line.
struct Case {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Case {
    fn start(folder: &Path, budget: Option<u64>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(std::env::args().skip(1)).arg("--serve").arg(folder);
        if let Some(budget) = budget {
            command.arg("--budget").arg(budget.to_string());
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts again");
        let orders = process.stdin.take().expect("its input");
        let answers = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, orders, answers }
    }

    fn order(&mut self, what: &str) -> f64 {
        writeln!(self.orders, "{what}").expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        line.trim().parse().expect("a number")
    }

    fn peak(mut self) -> u64 {
        let peak = self.order("peak");
        drop(self.orders);
        self.process.wait().expect("it ends");
        peak as u64
    }
}

/// The other side of a [`Case`].
fn serve(folder: &Path, tokens: usize, budget: u64) {
    let opened = Opened::new(folder).expect("the model opens");
    let plan = opened.plan(&work(tokens), Some(budget)).checked().expect("the budget is enough");
    let model = opened.load(&plan, &Device::flex(), Arc::default()).expect("the model loads");
    let ids: Vec<u32> = (0..tokens as u32).collect();
    let batch = TokenBatch::new(&[ids], 4096).expect("ids of the vocabulary");
    for order in std::io::stdin().lines() {
        let answer = match order.expect("an order").as_str() {
            "forward" => {
                let start = Instant::now();
                model.forward(&batch, WANT).expect("the model runs");
                start.elapsed().as_secs_f64()
            }
            "read" => model.read_through(1).expect("the files are read"),
            "processor" => processor_seconds(),
            "peak" => process::memory().expect("the system tells").peak as f64,
            other => panic!("{other} is no order"),
        };
        println!("{answer}");
    }
}

/// What all threads of this process have computed, those that ended too; only Linux tells.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which is in brackets, come the fields from the third on.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

fn forward(folder: &Path, size: u64, tokens: usize) -> bool {
    let mut resident = Case::start(folder, None);
    let mut streamed = Case::start(folder, Some(size / 4));
    for case in [&mut resident, &mut streamed] {
        case.order("forward");
    }
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(resident.order("forward"));
        times[1].push(streamed.order("forward"));
        times[2].push(streamed.order("read"));
    }
    let [whole, part, reading] = times.map(median);
    let ratio = part / whole.max(reading);
    println!(
        "forward: resident {whole:.3} s, within a quarter {part:.3} s, reading alone \
         {reading:.3} s; ratio {ratio:.3} (at most 1.15)"
    );
    // On a machine that others use too, this says more than the clock.
    let computed = |case: &mut Case| {
        let before = case.order("processor");
        for _ in 0..ROUNDS {
            case.order("forward");
        }
        (case.order("processor") - before) / ROUNDS as f64
    };
    let (whole, part) = (computed(&mut resident), computed(&mut streamed));
    println!(
        "         of the processors' time: resident {whole:.3} s, within a quarter {part:.3} s; \
         ratio {:.3}",
        part / whole
    );
    let mut held = ratio <= 1.15;
    println!("         resident: peak {} MiB", resident.peak() >> 20);
    streamed.peak();
    let opened = Opened::new(folder).expect("the model opens");
    for percent in BUDGETS {
        let budget = size * percent / 100;
        let plan = opened.plan(&work(tokens), Some(budget));
        if !plan.fits {
            // The process itself takes some of it.
            println!("         {percent:3} %: {} MiB are too few", budget >> 20);
            continue;
        }
        let mut case = Case::start(folder, Some(budget));
        let seconds = (0..2).map(|_| case.order("forward")).fold(f64::INFINITY, f64::min);
        let peak = case.peak();
        held &= peak <= budget;
        println!(
            "         {percent:3} %: {seconds:.3} s, peak {} of {} MiB{}",
            peak >> 20,
            budget >> 20,
            if peak <= budget { "" } else { ": TOO MUCH" }
        );
    }
    held
}

fn open(folder: &Path, work: &Work) -> Model {
    let opened = Opened::new(folder).expect("the model opens");
    let plan = opened.plan_with_share(work, 1.0);
    opened.load(&plan, &Device::flex(), Arc::default()).expect("the model loads")
}

/// Against a loop over Burn's operations that does the same.
fn decode(folder: &Path) -> bool {
    let work = Work { batch: 1, prompt: 4, new_tokens: 16, want: tokens::WANT };
    let model = open(folder, &work);
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
    ours / theirs <= 1.1
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
