//! What Surefoot costs: a guarded forward against Burn alone, and the start of the program.
//!
//! `cargo bench --workspace --bench overhead`. Ratios of interleaved rounds in one run, since
//! machines are noisy: the median, with the tenth and ninetieth percentile beside it.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use surefoot::Footing;
use surefoot::device::{DeviceName, Selector};
use surefoot::journal::Journal;
use surefoot::place::Weights;

const ROUNDS: usize = 61;
const FORWARDS: usize = 40;

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        let first = LinearConfig::new(256, 128).init(device);
        let second = LinearConfig::new(128, 10).init(device);
        Self { first, second }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.second.forward(relu(self.first.forward(x)))
    }
}

fn time(mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..FORWARDS {
        work();
    }
    started.elapsed().as_secs_f64() / FORWARDS as f64
}

/// The tenth, fiftieth and ninetieth percentile.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.1, 0.5, 0.9].map(|share| values[((values.len() - 1) as f64 * share) as usize])
}

fn main() {
    let device = Device::flex();
    let model = Mlp::new(&device);
    let x = Tensor::<2>::random([64, 256], Distribution::Default, &device);
    let footing = |journal: Journal| {
        Footing::builder()
            .devices(Selector::only(DeviceName::CPU))
            .journal(journal)
            .build()
            .expect("the CPU opens")
    };
    let (off, ring) = (footing(Journal::off()), footing(Journal::builder().ring(256).build()));

    let bare = || {
        time(|| {
            black_box(model.forward(x.clone()));
        })
    };
    let guarded = |footing: &Footing| {
        time(|| {
            black_box(footing.run("forward", |_| Ok(model.forward(x.clone()))).expect("it runs"));
        })
    };
    let placed = |footing: &Footing| {
        let weights = Weights(model.clone());
        time(|| {
            let inputs = (weights.clone(), x.clone());
            let run = footing.task("forward").run_with(inputs, |_, (m, x)| Ok(m.forward(x)));
            black_box(run.expect("it runs"));
        })
    };
    bare();
    let mut rows: [(&str, Vec<f64>); 3] = [
        ("guarded", Vec::new()),
        ("guarded, with a journal in memory", Vec::new()),
        ("guarded, weights and input checked each time", Vec::new()),
    ];
    let mut base = Vec::new();
    for _ in 0..ROUNDS {
        // Burn's time is taken before and after, so that a slow spell hits both sides.
        let before = bare();
        let times = [guarded(&off), guarded(&ring), placed(&off)];
        let around = (before + bare()) / 2.0;
        base.push(around * 1e6);
        for (row, time) in rows.iter_mut().zip(times) {
            row.1.push(time / around);
        }
    }
    let [low, middle, high] = spread(base);
    println!(
        "MLP 256-128-10, batch 64, on the CPU: Burn alone {middle:.0} µs ({low:.0} to {high:.0})"
    );
    for (name, ratios) in rows {
        let [low, middle, high] = spread(ratios);
        println!("{name}: {middle:.3} x Burn alone ({low:.3} to {high:.3})");
    }

    let starts = (0..21).map(|_| start().as_secs_f64() * 1e3).collect();
    let [low, middle, high] = spread(starts);
    println!("surefoot devices: {middle:.0} ms ({low:.0} to {high:.0})");
}

fn start() -> Duration {
    let started = Instant::now();
    let status = Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .arg("devices")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("the program starts");
    assert!(status.success());
    started.elapsed()
}
