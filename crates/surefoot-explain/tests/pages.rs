//! `docs/errors` is what the guides say.

use std::fs;
use std::path::Path;

use surefoot_explain::guides;

#[test]
fn the_pages_are_those_of_the_guides() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let again = "run `cargo run --release -p surefoot-explain --example error_pages`";
    let read = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        text.replace("\r\n", "\n")
    };
    assert!(read("README.md") == guides::index(), "README.md: {again}");
    for guide in guides::all() {
        let name = format!("{}.md", guide.name);
        assert!(read(&name) == guides::page(guide), "{name}: {again}");
    }
    let files = fs::read_dir(&folder).expect("docs/errors").count();
    assert_eq!(files, guides::all().count() + 1, "a page without a guide is left in docs/errors");
}
