//! How many messages a second are explained on one core: the sample set, which the rules decide,
//! and messages of round `provoked-1` that the learned stage has to decide.
//!
//! `cargo bench -p surefoot-explain --bench explain` prints messages/s: the best and the median of
//! many short rounds, since other work on the machine only ever makes a round slower.

use std::hint::black_box;
use std::time::Instant;

use surefoot_explain::learned::RULES_SURE_ABOVE;
use surefoot_explain::{explain, explain_by_rules};

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
