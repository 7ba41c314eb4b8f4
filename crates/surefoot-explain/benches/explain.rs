//! How many messages a second are explained on one core: the sample set, which the rules decide,
//! and messages of round `provoked-1` that the learned stage has to decide; and how long a log of
//! 100 MB takes.
//!
//! `cargo bench -p surefoot-explain --bench explain` prints messages/s: the best and the median of
//! many short rounds, since other work on the machine only ever makes a round slower.

use std::hint::black_box;
use std::time::Instant;

use surefoot_explain::learned::RULES_SURE_ABOVE;
use surefoot_explain::{LogReader, explain, explain_by_rules};

const ROUNDS: usize = 1000;

fn main() {
    let samples = messages(include_str!("../tests/data/errors.jsonl"));
    let cold = Instant::now();
    black_box(explain(&samples[0]));
    println!(
        "first message, with the rules compiled: {:.1} ms",
        cold.elapsed().as_secs_f64() * 1e3
    );
    let provoked = messages(include_str!("../tests/data/rounds/provoked-1.jsonl"));
    let sure = |message: &String| explain_by_rules(message).confidence > RULES_SURE_ABOVE;
    let (known, _) = samples.into_iter().partition::<Vec<_>, _>(sure);
    let (_, unsure) = provoked.into_iter().partition::<Vec<_>, _>(sure);
    measure("decided by the rules", &known);
    measure("with the learned stage", &unsure);
    measure_log();
}

/// A training log of eight ranks with warnings and metrics called errors, an error that was
/// survived, and a failure at its end.
fn measure_log() {
    let mut log = String::new();
    let mut step = 0;
    while log.len() < 100_000_000 {
        step += 1;
        let rank = step % 8;
        log += &format!(
            "2026-05-14 09:12:44,871 [rank{rank}] INFO trainer: step {step}: loss 2.3145, lr 3.0e-04, tokens/s 41234\n"
        );
        if step % 100 == 0 {
            log += &format!("[rank{rank}] validation error 0.{step}, best so far\n");
        }
        if step == 1000 {
            log += "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n";
        }
    }
    log += "[rank3]: RuntimeError: CUDA error: device-side assert triggered\n";
    log += "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580)\n";
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            let mut reader = LogReader::new();
            log.as_bytes().chunks(1 << 20).for_each(|piece| reader.feed(piece));
            let found = black_box(reader.finish());
            assert_eq!(found.first.map(|first| first.text.starts_with("[rank3]")), Some(true));
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "a log of {} MB, {} lines: median {:.2} s, best {:.2} s",
        log.len() / 1_000_000,
        log.lines().count(),
        times[2],
        times[0]
    );
}

fn messages(jsonl: &str) -> Vec<String> {
    jsonl
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|row| row["message"].as_str().map(str::to_owned))
        .collect()
}

fn measure(name: &str, messages: &[String]) {
    let bytes: usize = messages.iter().map(String::len).sum();
    for message in messages {
        black_box(explain(message));
    }
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for message in messages {
                black_box(explain(black_box(message)));
            }
            messages.len() as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let (median, best) = (rates[ROUNDS / 2], rates[ROUNDS - 1]);
    println!(
        "{name}: {} messages of {} bytes on average, messages/s: median {median:.0}, best {best:.0}",
        messages.len(),
        bytes / messages.len().max(1)
    );
}
