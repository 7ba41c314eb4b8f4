//! Trains and evaluates the learned last stage of `explain`.
//!
//! `cargo run --release -p surefoot-explain --example learned_stage -- train` writes
//! `model/weights.bin`; with `-- evaluate` it prints the report in docs/benchmark-log.md, and with `-- latest` only the line of
//! the latest three rounds, for trying settings.

mod data;
mod evaluate;
mod fit;
mod measures;

use std::error::Error;
use std::fs;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("train") => write_model(),
        Some("evaluate") => evaluate::report(),
        Some("latest") => evaluate::latest(),
        _ => Err("say what to do: `train`, `evaluate` or `latest`".into()),
    }
}

fn write_model() -> Result<(), Box<dyn Error>> {
    let messages = data::all()?;
    let model = fit::calibrated(&messages.iter().collect::<Vec<_>>(), &data::ordinary()?);
    let bytes = model.to_bytes();
    let path = data::folder().join("model/weights.bin");
    fs::write(&path, &bytes)?;
    println!("{} messages, {} bytes, {:?}", messages.len(), bytes.len(), model.calibration);
    Ok(())
}
