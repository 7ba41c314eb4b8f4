//! `surefoot predict` on what `surefoot train` left.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod trained;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use trained::{surefoot, text, trained};

fn table(header: &str, lines: impl Iterator<Item = String>) -> String {
    lines.fold(format!("{header}\n"), |text, line| text + &line + "\n")
}

/// Points left and right of 0.
fn points() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let line = |at: usize| {
        let x = if at.is_multiple_of(2) { -2.0 } else { 2.0 } + (at as f64 * 0.7).sin();
        format!("{x},{},{}", (at as f64).cos(), ["left", "right"][at % 2])
    };
    fs::write(folder.path().join("points.csv"), table("x,y,side", (0..200).map(line))).unwrap();
    let config = "{data: {kind: csv, path: points.csv}, model: {kind: mlp, hidden: [8]}, \
                  batch_size: 16, epochs: 8, optimizer: {lr: 0.05}}";
    let checkpoint = trained(folder.path(), config);
    (folder, checkpoint)
}

#[test]
fn lines_of_a_table_get_labels_with_probabilities() {
    let (folder, checkpoint) = points();
    // Other order of columns, no label, more lines than a batch.
    let lines = (0..40).map(|at| format!("0.5,{}", if at < 20 { -2.0 } else { 2.0 }));
    fs::write(folder.path().join("new.csv"), table("y,x", lines)).unwrap();
    let output = surefoot(folder.path(), &["predict", &checkpoint, "new.csv"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    let labels: Vec<&str> = told.lines().map(|line| line.split('\t').nth(1).unwrap()).collect();
    assert_eq!(labels, [["left"; 20], ["right"; 20]].concat());
    let first: Vec<&str> = told.lines().next().unwrap().split('\t').collect();
    assert_eq!(first[..2], ["line 2 of new.csv", "left"]);
    assert!((0.9..=1.0).contains(&first[2].parse::<f64>().unwrap()), "{told}");

    let output =
        surefoot(folder.path(), &["predict", &checkpoint, "new.csv", "--json", "--top", "2"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = &document["predictions"][0];
    assert_eq!((&first["label"], &first["input"]), (&"left".into(), &"line 2 of new.csv".into()));
    let shares: Vec<f64> =
        (0..2).map(|at| first["top"][at]["probability"].as_f64().unwrap()).collect();
    assert!((shares[0] + shares[1] - 1.0).abs() < 1e-9 && shares[0] > shares[1], "{first}");
    assert_eq!(document["classes"], serde_json::json!(["left", "right"]));
}

#[test]
fn what_can_not_be_read_is_named_and_the_rest_is_predicted() {
    let (folder, checkpoint) = points();
    fs::write(folder.path().join("new.csv"), "x,y\n-2,0\nmany,0\n2,0\n").unwrap();
    let output = surefoot(folder.path(), &["predict", &checkpoint, "new.csv", "nowhere.csv"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout).lines().count(), 2);
    let error = text(&output.stderr);
    assert!(error.contains("line 3 of new.csv") && error.contains("'many'"), "{error}");
    assert!(error.contains("nowhere.csv"), "{error}");
    fs::write(folder.path().join("other.csv"), "x,z\n1,2\n").unwrap();
    let output = surefoot(folder.path(), &["predict", &checkpoint, "other.csv"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no column 'y'"), "{}", text(&output.stderr));
}

#[test]
fn predicting_survives_a_fault_and_says_the_same() {
    let (folder, checkpoint) = points();
    let plain = surefoot(folder.path(), &["predict", &checkpoint, "points.csv"]);
    let drill = ["--drill", "out_of_memory:count=3,op=predict"];
    let struck = [&["predict", &checkpoint, "points.csv"][..], &drill].concat();
    let struck = surefoot(folder.path(), &struck);
    assert!(struck.status.success(), "{}", text(&struck.stderr));
    assert_eq!(text(&struck.stdout), text(&plain.stdout));
    let fail = ["predict", &checkpoint, "points.csv", "--on-fault", "fail"];
    let failed = surefoot(folder.path(), &[&fail[..], &drill].concat());
    assert_eq!(failed.status.code(), Some(3));
}

#[test]
fn numbers_come_back_in_the_units_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let price = |x: f64, y: f64| 1000.0 + 250.0 * x - 100.0 * y;
    let line = |at: usize| {
        let (x, y) = ((at as f64 * 0.7).sin(), (at as f64 * 0.3).cos());
        format!("{x},{y},{}", price(x, y))
    };
    fs::write(folder.path().join("prices.csv"), table("x,y,price", (0..300).map(line))).unwrap();
    let config = "{data: {kind: csv, path: prices.csv}, model: {kind: mlp, hidden: [16]}, \
                  batch_size: 20, epochs: 40, optimizer: {lr: 0.02}}";
    let checkpoint = trained(folder.path(), config);
    fs::write(folder.path().join("new.csv"), "x,y\n0.5,0.5\n-0.5,0\n").unwrap();
    let output = surefoot(folder.path(), &["predict", &checkpoint, "new.csv", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (at, expected) in [price(0.5, 0.5), price(-0.5, 0.0)].into_iter().enumerate() {
        let value = document["predictions"][at]["value"].as_f64().unwrap();
        assert!((value - expected).abs() < 40.0, "{value} for {expected}");
    }
}

#[test]
fn the_next_characters_of_a_text_are_ranked() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "abcdef".repeat(200)).unwrap();
    let config = "{data: {kind: text, path: text.txt, length: 12}, batch_size: 8, steps: 60, \
                  model: {kind: gpt, layers: 1, heads: 2, width: 16}, optimizer: {lr: 0.02}}";
    let checkpoint = trained(folder.path(), config);
    // Shorter than a piece, as long as one, and longer.
    for (prompt, next) in [("abc", "d"), ("fabcdefabcde", "f"), (&*"abcdef".repeat(5), "a")] {
        let output = surefoot(folder.path(), &["predict", &checkpoint, "--text", prompt]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let told = text(&output.stdout);
        assert_eq!(told.split('\t').nth(1), Some(next), "{prompt}: {told}");
    }
    let output = surefoot(folder.path(), &["predict", &checkpoint, "--text", "abx"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("'x'"), "{}", text(&output.stderr));
}

/// Bright and dark images as PNG, by Python's rules: filter 0 and stored blocks.
fn png(brightness: u8) -> Vec<u8> {
    let side = 8u32;
    let rows: Vec<u8> =
        (0..side).flat_map(|_| std::iter::once(0).chain((0..side).map(|_| brightness))).collect();
    let mut stored = vec![0x78, 1, 1];
    stored.extend((rows.len() as u16).to_le_bytes());
    stored.extend((!(rows.len() as u16)).to_le_bytes());
    stored.extend(&rows);
    let (mut a, mut b) = (1u32, 0u32);
    for byte in &rows {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    stored.extend((b << 16 | a).to_be_bytes());
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |name: &[u8], data: &[u8]| {
        file.extend((data.len() as u32).to_be_bytes());
        let body = [name, data].concat();
        let crc = body.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
        });
        file.extend(body);
        file.extend((!crc).to_be_bytes());
    };
    let head = [side.to_be_bytes(), side.to_be_bytes()].concat();
    chunk(b"IHDR", &[&head[..], &[8, 0, 0, 0, 0]].concat());
    chunk(b"IDAT", &stored);
    chunk(b"IEND", &[]);
    file
}

#[test]
fn images_are_labelled_one_by_one_by_folder_and_from_stdin() {
    let folder = tempfile::tempdir().unwrap();
    for (class, low) in [("dark", 0u8), ("bright", 180)] {
        fs::create_dir_all(folder.path().join("images").join(class)).unwrap();
        for at in 0..30u8 {
            let mut name = String::new();
            write!(name, "images/{class}/{at}.png").unwrap();
            fs::write(folder.path().join(name), png(low + 2 * at)).unwrap();
        }
    }
    let config = "{data: {kind: folder, path: images, size: 8, channels: 1}, batch_size: 8, \
                  epochs: 6, model: {kind: mlp, hidden: [8]}, optimizer: {lr: 0.02}}";
    let checkpoint = trained(folder.path(), config);
    let run = |arguments: &[&str]| {
        let output = surefoot(folder.path(), &[&["predict", &checkpoint], arguments].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(run(&["images/dark/3.png"]).starts_with("images/dark/3.png\tdark\t"));
    let all = run(&["images"]);
    let right = all.lines().filter(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        PathBuf::from(fields[0]).parent().unwrap().ends_with(fields[1])
    });
    assert_eq!((all.lines().count(), right.count()), (60, 60), "{all}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .current_dir(folder.path())
        .args(["predict", &checkpoint, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&png(240)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text(&output.stdout).starts_with("stdin\tbright\t"), "{}", text(&output.stdout));
}
