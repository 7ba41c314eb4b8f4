//! Makes the page of a load test: reads it as JSON from stdin and writes HTML to stdout.
//! `benches/peers/load.py --html FILE` does.

use std::io;

use surefoot_report::LoadTest;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let test: LoadTest = serde_json::from_reader(io::stdin().lock())?;
    test.write(io::stdout().lock())?;
    Ok(())
}
