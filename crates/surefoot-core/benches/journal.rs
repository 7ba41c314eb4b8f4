//! What an event costs the thread that records it: ns an event with the journal off and with each
//! sink, and as a ratio to a loop that only makes the same event.
//!
//! `cargo bench -p surefoot-core --bench journal [-- FOLDER]` prints the median of the rounds and their
//! spread. The cases take turns within each round, so that a busy machine disturbs all alike. The
//! file is written in FOLDER, or else the folder for temporary files: its file system matters.

use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use surefoot_core::journal::{Event, EventKind, Journal};

const ROUNDS: usize = 25;
const EVENTS: u32 = 10_000;

fn event(number: u32) -> Event {
    Event::new(EventKind::Step, "forward")
        .device("gpu")
        .dtype("f16")
        .bytes(u64::from(number))
        .duration(Duration::from_nanos(u64::from(number) * 1001))
}

/// Listens to everything and keeps nothing: what remains is the cost of handing over.
struct Listener;

impl tracing::Subscriber for Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        black_box(event);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn ns_an_event(mut one: impl FnMut(u32)) -> f64 {
    let start = Instant::now();
    for number in 0..EVENTS {
        one(black_box(number));
    }
    start.elapsed().as_nanos() as f64 / f64::from(EVENTS)
}

struct Case<'a> {
    name: &'static str,
    one: Box<dyn FnMut(u32) + 'a>,
    rounds: Vec<f64>,
}

fn main() -> std::io::Result<()> {
    // Cargo passes `--bench`; anything else that is no option is the folder.
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let folder = given.map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("surefoot-bench-{}.journal.jsonl", std::process::id()));
    let bare_path = path.with_extension("bytes");

    let off = Journal::off();
    let ring = Journal::builder().ring(1024).build();
    let unheard = Journal::builder().tracing().build();
    let heard = Journal::builder().tracing().build();
    let file = Journal::builder().file(&path)?.build();
    file.record(event(1234));
    let line = std::fs::read_to_string(&path)?.lines().last().unwrap_or_default().len() + 1;
    let bytes = vec![b'x'; line];
    let mut bare = std::fs::OpenOptions::new().append(true).create(true).open(&bare_path)?;

    let case = |name, one| Case { name, one, rounds: Vec::new() };
    let mut cases = [
        case("empty loop", Box::new(|_| {})),
        case("making the event", Box::new(|number| drop(black_box(event(number))))),
        case("off", Box::new(|number| off.with(|| event(number)))),
        case("ring", Box::new(|number| ring.with(|| event(number)))),
        case("tracing, nobody listens", Box::new(|number| unheard.with(|| event(number)))),
        case("tracing, one listens", Box::new(|number| heard.with(|| event(number)))),
        case("bare write of such a line", Box::new(|_| drop(black_box(bare.write(&bytes))))),
        case("file", Box::new(|number| file.with(|| event(number)))),
    ] as [Case<'_>; 8];
    // The first round warms up and doesn't count.
    for round in 0..=ROUNDS {
        for case in &mut cases {
            let ns = if case.name == "tracing, one listens" {
                tracing::subscriber::with_default(Listener, || ns_an_event(&mut case.one))
            } else {
                ns_an_event(&mut case.one)
            };
            if round > 0 {
                case.rounds.push(ns);
            }
        }
    }
    for case in &mut cases {
        case.rounds.sort_by(f64::total_cmp);
    }

    println!(
        "journal: {ROUNDS} rounds of {EVENTS} events, {line} bytes a line, in {}",
        folder.display()
    );
    println!("{:<28}{:>10}{:>10}{:>10}{:>14}", "", "median ns", "least", "most", "× empty loop");
    let empty = cases[0].rounds[ROUNDS / 2];
    for case in &cases {
        let median = case.rounds[ROUNDS / 2];
        println!(
            "{:<28}{median:>10.1}{:>10.1}{:>10.1}{:>14.1}",
            case.name,
            case.rounds[0],
            case.rounds[ROUNDS - 1],
            median / empty
        );
    }
    drop(cases);
    file.flush()?;
    std::fs::remove_file(&path)?;
    std::fs::remove_file(&bare_path)
}
