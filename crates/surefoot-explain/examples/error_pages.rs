//! Writes the pages of `docs/errors` from the guides of `explain`.
//!
//! `cargo run --release -p surefoot-explain --example error_pages`

use std::path::Path;
use std::{fs, io};

use surefoot_explain::guides;

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("README.md"), guides::index())?;
    for guide in guides::all() {
        fs::write(folder.join(format!("{}.md", guide.name)), guides::page(guide))?;
    }
    Ok(())
}
