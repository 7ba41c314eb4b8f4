//! Fixes: what they write, that they parse, and that doing it twice is doing it once.

use std::fs;
use std::path::Path;

use surefoot_torch::check::check;
use surefoot_torch::fix::{diff, fix, write};
use surefoot_torch::rules;
use surefoot_torch::source::Source;

fn source(text: &str) -> Source {
    Source::from_bytes("t.py".to_owned(), text.as_bytes().to_vec()).expect("UTF-8")
}

fn fixed(text: &str) -> String {
    fix(&source(text), &rules::ALL).expect("something to fix").source.text
}

#[test]
fn each_fix_writes_what_its_page_promises() {
    for (before, after) in [
        (
            "import torch\nx = torch.zeros(3)\nx.half()\n",
            "import torch\nx = torch.zeros(3)\nx = x.half()\n",
        ),
        (
            "import torch\nd = \"mps\" if torch.backends.mps.is_built() else \"cpu\"\n",
            "import torch\nd = \"mps\" if torch.backends.mps.is_available() else \"cpu\"\n",
        ),
        (
            "import torch\nif torch.backends.cuda.is_built():\n    pass\n",
            "import torch\nif torch.cuda.is_available():\n    pass\n",
        ),
        (
            "import torch\nd = torch.device(\"mps\")\nl = torch.utils.data.DataLoader([], pin_memory=True)\n",
            "import torch\nd = torch.device(\"mps\")\nl = torch.utils.data.DataLoader([], pin_memory=torch.cuda.is_available())\n",
        ),
        (
            "import torch\nl = torch.utils.data.DataLoader([], persistent_workers=True)\n",
            "import torch\nl = torch.utils.data.DataLoader([], persistent_workers=False)\n",
        ),
        (
            "import torch\nm.load_state_dict(torch.load(p))\n",
            "import torch\nm.load_state_dict(torch.load(p, map_location=\"cpu\", weights_only=True))\n",
        ),
        (
            "import torch\ns = torch.load(p)\nm.load_state_dict(s)\ndel s\n",
            "import torch\ns = torch.load(p, map_location=\"cpu\", weights_only=True)\nm.load_state_dict(s)\ndel s\n",
        ),
        (
            "import torch\nc = torch.load(p, weights_only=False)\nm.load_state_dict(c[\"model\"])\ne = c[\"epoch\"]\n",
            "import torch\nc = torch.load(p, weights_only=False, map_location=\"cpu\")\nm.load_state_dict(c[\"model\"])\ne = c[\"epoch\"]\n",
        ),
        (
            "import torch\nm = torch.load(p, weights_only=False).to(d)\n",
            "import torch\nm = torch.load(p, weights_only=False, map_location=\"cpu\").to(d)\n",
        ),
        (
            "import torch\ndef f(m, d, o, c):\n    t = 0\n    for x in d:\n        o.zero_grad()\n        loss = c(m(x))\n        loss.backward()\n        o.step()\n        t += loss\n",
            "import torch\ndef f(m, d, o, c):\n    t = 0\n    for x in d:\n        o.zero_grad()\n        loss = c(m(x))\n        loss.backward()\n        o.step()\n        t += loss.detach()\n",
        ),
    ] {
        assert_eq!(fixed(before), after);
    }
}

#[test]
fn arguments_are_added_after_a_trailing_comma_and_a_comment() {
    let text = "import torch\nm.load_state_dict(torch.load(\n    path,  # the best one\n))\n";
    let now = fixed(text);
    assert!(
        now.contains("path, map_location=\"cpu\", weights_only=True,  # the best one"),
        "{now}"
    );
}

#[test]
fn fixing_every_case_twice_is_fixing_it_once() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut count = 0;
    for folder in fs::read_dir(cases).expect("cases") {
        for file in fs::read_dir(folder.expect("a folder").path()).expect("files") {
            let path = file.expect("a file").path();
            if path.is_dir() {
                continue; // requirements
            }
            let before = Source::read(&path).expect("a case");
            let Some(after) = fix(&before, &rules::ALL) else { continue };
            count += 1;
            let left = check(&after.source, &rules::ALL).expect("it still parses");
            assert!(left.iter().all(|finding| finding.fix.is_none()), "{}", before.path);
            assert!(fix(&after.source, &rules::ALL).is_none(), "{}", before.path);
        }
    }
    assert!(count >= 10, "only {count} cases have fixes");
}

#[test]
fn the_diff_shows_only_what_changes() {
    let before = source("import torch\nx = torch.zeros(3)\nx.half()\ny = 1\n");
    let after = fix(&before, &rules::ALL).expect("something to fix");
    let diff = diff(&before, &after.source);
    assert!(diff.starts_with("--- a/t.py\n+++ b/t.py\n"), "{diff}");
    assert!(diff.contains("\n-x.half()\n+x = x.half()\n"), "{diff}");
}

#[test]
fn notebooks_are_fixed_cell_by_cell() {
    let notebook = r#"{"cells": [
        {"cell_type": "code", "source": ["import torch\n", "%matplotlib inline\n", "x = torch.zeros(3)"]},
        {"cell_type": "markdown", "source": ["text"]},
        {"cell_type": "code", "source": ["!ls\n", "x.half()"]}
    ], "nbformat": 4}"#;
    let before =
        Source::from_bytes("n.ipynb".to_owned(), notebook.as_bytes().to_vec()).expect("a notebook");
    let findings = check(&before, &rules::ALL).expect("it parses");
    let place = before.place(findings[0].range.start());
    assert_eq!((place.cell, place.line, place.column), (Some(3), 2, 1));
    let after = fix(&before, &rules::ALL).expect("something to fix");
    assert!(diff(&before, &after.source).contains("n.ipynb (cell 3)"));
    assert!(after.source.text.contains("!ls\nx = x.half()"));
}

#[test]
fn what_is_loaded_and_used_otherwise_is_left_alone() {
    for text in [
        "import torch\nx = torch.load(p)\ny = x + 1\n",
        "import torch\ndef f(p):\n    return torch.load(p)\n",
        "import torch\nc = torch.load(p, weights_only=False)\nm.load_state_dict(c[\"m\"])\nbest = c[\"best\"]\n",
        // A checkpoint may hold more than weights, which `weights_only` would refuse.
        "import torch\nc = torch.load(p, map_location=\"cpu\")\nm.load_state_dict(c[\"model\"])\n",
        "import torch\nfor p in ps:\n    print(s)\n    s = torch.load(p)\n    m.load_state_dict(s)\n",
    ] {
        assert!(fix(&source(text), &rules::ALL).is_none(), "{text}");
    }
}

#[test]
fn a_file_in_another_encoding_is_fixed_in_that_encoding() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.py");
    let before =
        b"# -*- coding: latin-1 -*-\nimport torch\n# caf\xe9\nx = torch.zeros(3)\nx.half()\n";
    fs::write(&path, before).expect("written");
    let read = Source::read(&path).expect("decoded");
    assert!(read.text.contains("café"));
    let now = fix(&read, &rules::ALL).expect("something to fix");
    write(&read, &now).expect("written");
    let after = fs::read(&path).expect("read");
    assert_eq!(
        after,
        before
            .to_vec()
            .strip_suffix(b"x.half()\n")
            .map(|head| [head, b"x = x.half()\n"].concat())
            .expect("a suffix")
    );
    // The file has changed since: nothing is written over it.
    assert!(write(&read, &now).is_err());
}
