//! How many messages a second the text classifier explains on one core, over the sample set.
//!
//! `cargo bench -p surefoot-explain --bench explain` prints messages/s: the best and the median of
//! many short rounds, since other work on the machine only ever makes a round slower.

use std::hint::black_box;
use std::time::Instant;

use surefoot_explain::explain;

const ROUNDS: usize = 1000;

fn main() {
    let messages: Vec<String> = include_str!("../tests/data/errors.jsonl")
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|row| row["message"].as_str().map(str::to_owned))
        .collect();
    let bytes: usize = messages.iter().map(String::len).sum();

    let cold = Instant::now();
    black_box(explain(&messages[0]));
    let cold = cold.elapsed();
    for message in &messages {
        black_box(explain(message));
    }

    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for message in &messages {
                black_box(explain(black_box(message)));
            }
            messages.len() as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let (median, best) = (rates[ROUNDS / 2], rates[ROUNDS - 1]);
    println!("{} messages of {} bytes on average", messages.len(), bytes / messages.len());
    println!("first message, with the rules compiled: {:.1} ms", cold.as_secs_f64() * 1e3);
    println!("messages/s: median {median:.0}, best {best:.0}");
}
