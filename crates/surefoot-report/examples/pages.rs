//! Writes one page of each sort with made-up figures, to see what they look like:
//!
//!     cargo run --release --workspace --example pages -- FOLDER

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use surefoot_report::{
    Challenge, Epoch, Evidence, LatencyBucket, LoadPhase, LoadTest, Point, Site, Training, Verdict,
};

fn main() -> io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let folder = Path::new(&folder);
    let file = |name: &str| File::create(folder.join(name)).map(BufWriter::new);
    training().write(file("training.html")?)?;
    evidence(Verdict::Different).write(file("different.html")?)?;
    evidence(Verdict::Same).write(file("same.html")?)?;
    load().write(file("load.html")?)
}

fn training() -> Training {
    let loss = |step: f64| 2.3 * (-step / 180.0).exp() + 0.08 + 0.03 * (step * 0.9).sin();
    let points = (1..=600).map(|step| {
        let at = f64::from(step);
        let accuracy = 1.0 - loss(at) / 2.6;
        Point {
            step: step as u64,
            loss: loss(at),
            accuracy,
            samples_per_second: 4200.0 + 300.0 * (at / 40.0).sin(),
        }
    });
    let epochs = (1..=6).map(|epoch| {
        let at = f64::from(epoch) * 100.0;
        Epoch {
            epoch: epoch as u64,
            step: epoch as u64 * 100,
            train_loss: loss(at - 50.0),
            train_accuracy: 1.0 - loss(at - 50.0) / 2.6,
            test_loss: loss(at) + 0.05,
            test_accuracy: 0.985 - loss(at) / 3.0,
            samples_per_second: 4200.0,
            memory: 24 << 20,
            device: "cpu".to_owned(),
        }
    });
    Training {
        title: "digits".to_owned(),
        summary: "6 epochs, 600 steps in 12.1 s on cpu in fp32; no faults.".to_owned(),
        points: points.collect(),
        epochs: epochs.collect(),
        best_step: Some(600),
        confusion: None,
        facts: vec![("parameters".to_owned(), "19,706".to_owned())],
    }
}

fn evidence(verdict: Verdict) -> Evidence {
    let differs = verdict == Verdict::Different;
    let sites = (0..24).map(|block| {
        let noise = 0.004 + 0.0003 * f64::from(block);
        let beyond = if differs && block >= 9 { 0.035 + 0.002 * f64::from(block) } else { 0.0 };
        Site {
            name: format!("block {block}"),
            distance: noise * 0.6 + beyond,
            tolerance: noise,
            bits: 3.0 * (noise * 0.6 + beyond),
            first_to_diverge: differs && block == 9,
        }
    });
    let challenges = (1..=18).map(|number| {
        let grows = 0.13 * f64::from(number);
        Challenge {
            against_same: if differs { grows } else { -grows },
            against_different: if differs { -grows } else { grows },
        }
    });
    Evidence {
        title: "model-a against model-b".to_owned(),
        verdict,
        summary: if differs {
            "Block 9 and everything behind it answers differently than the same weights would."
        } else {
            "All sites agree within what the same weights show when they are run in other ways."
        }
        .to_owned(),
        alpha: 0.01,
        beta: 0.01,
        challenges: challenges.collect(),
        challenges_used: 16,
        sites: sites.collect(),
        facts: vec![
            ("root".to_owned(), "9f2c…".repeat(8)),
            ("policy".to_owned(), "32 challenges, 8,192 bits, all sites".to_owned()),
        ],
    }
}

fn load() -> LoadTest {
    let phases = [1u64, 2, 4, 8, 16, 32, 64].map(|clients| {
        let rate = 310.0 * (clients as f64).min(14.0);
        LoadPhase {
            clients,
            requests_per_second: rate,
            tokens_per_second: Some(rate * 16.0),
            median_ms: 1e3 * clients as f64 / rate,
            p95_ms: 1.6e3 * clients as f64 / rate,
            p99_ms: 2.4e3 * clients as f64 / rate,
            answered: (10.0 * rate) as u64,
            refused: clients.saturating_sub(32) * 11,
            failed: 0,
        }
    });
    let latencies = (0..18).map(|at| LatencyBucket {
        up_to_ms: 2f64.powf(f64::from(at) / 2.0),
        count: (9000.0 * (-(f64::from(at) - 7.0).powi(2) / 9.0).exp()) as u64,
    });
    LoadTest {
        title: "Load test of tiny-llama".to_owned(),
        summary: "The rate grows up to 14 clients; beyond that they wait for each other."
            .to_owned(),
        phases: phases.to_vec(),
        latencies: latencies.collect(),
        batches: (1..=16).map(|size| (size, 400 / size)).collect(),
        facts: vec![("device".to_owned(), "cpu in fp32".to_owned())],
    }
}
