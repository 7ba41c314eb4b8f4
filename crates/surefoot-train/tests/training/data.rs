//! Runs on data of the user's own.

use std::fmt::Write as _;
use std::fs;

use crate::harness::Trial;
use surefoot::FaultKind;
use surefoot_train::{TrainError, TrainEvent};

/// Two clouds of points, with a line that is no sample.
fn table(bad: bool) -> String {
    let mut text = String::from("x,y,kind\n");
    for at in 0..200 {
        let side = f64::from(at % 2) * 4.0 - 2.0;
        let wave = f64::from(at) * 0.7;
        let _ =
            writeln!(text, "{},{},{}", side + wave.sin(), wave.cos(), ["a", "b"][at as usize % 2]);
        if bad && at == 50 {
            text.push_str("1,not a number,a\n");
        }
    }
    text
}

const CSV: &str = "\
data: {kind: csv, label: kind}
model: {kind: mlp, hidden: [8]}
batch_size: 20
epochs: 8
optimizer: {lr: 0.05}
";

#[test]
fn a_table_is_learned() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    fs::write(&file, table(false)).unwrap();
    let trial = Trial { config: CSV, ..Trial::new(folder.path()) };
    let (report, _) = trial.set("data.path", &file.display().to_string()).run().unwrap();
    assert!(report.test_accuracy > 0.95, "{}", report.test_accuracy);
}

#[test]
fn a_bad_sample_ends_the_run_with_its_name_or_is_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    fs::write(&file, table(true)).unwrap();
    let path = file.display().to_string();
    let trial = || Trial { config: CSV, ..Trial::new(folder.path()) }.set("data.path", &path);
    let Err(TrainError::Fault { fault, .. }) = trial().run() else { panic!() };
    assert_eq!(fault.kind, FaultKind::DataLoading);
    let text = fault.root_cause();
    assert!(text.contains("line 53") && text.contains("not a number"), "{text}");
    let (report, news) = trial().set("data.on_bad_sample", "skip").run().unwrap();
    assert!(report.test_accuracy > 0.9);
    let told = news.iter().filter(|news| matches!(news, TrainEvent::SkippedSample { .. })).count();
    assert_eq!(report.skipped_samples, told as u64);
}

#[test]
fn bad_samples_among_those_to_test_on_are_told_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    let text = table(false) + &"1,not a number,a\n".repeat(20);
    fs::write(&file, text).unwrap();
    let trial = Trial { config: CSV, ..Trial::new(folder.path()) }
        .set("data.path", &file.display().to_string())
        .set("data.on_bad_sample", "skip");
    let (report, news) = trial.run().unwrap();
    let told: Vec<&String> = news
        .iter()
        .filter_map(|news| match news {
            TrainEvent::SkippedSample { what } => Some(what),
            _ => None,
        })
        .collect();
    // Each of them once, however many epochs there are.
    assert_eq!(told.len(), 20);
    assert_eq!(report.skipped_samples, told.len() as u64);
    let lines: std::collections::BTreeSet<_> = told.into_iter().collect();
    assert_eq!(lines.len(), 20);
}

#[test]
fn a_number_is_predicted_and_what_it_explains_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prices.csv");
    let mut text = String::from("x,y,price\n");
    for at in 0..300 {
        let (x, y) = ((f64::from(at) * 0.7).sin(), (f64::from(at) * 0.3).cos());
        let _ = writeln!(text, "{x},{y},{}", 1000.0 + 250.0 * x - 100.0 * y);
    }
    fs::write(&file, text).unwrap();
    let trial = Trial { config: CSV, ..Trial::new(folder.path()) }
        .set("data.path", &file.display().to_string())
        .set("data.label", "price")
        .set("epochs", "40");
    let (report, _) = trial.run().unwrap();
    // The loss is relative to the variance of the prices, so that it equals 1 − R².
    assert_eq!(report.metric, "r2");
    assert!(report.test_accuracy > 0.99, "{}", report.test_accuracy);
    assert!((1.0 - report.test_loss - report.test_accuracy).abs() < 1e-6);
    let manifest = surefoot_train::checkpoint::read_manifest(&report.checkpoint).unwrap();
    let target = manifest.data.target.unwrap();
    assert!((target.mean[0] - 1000.0).abs() < 50.0, "{target:?}");
}

#[test]
fn the_best_of_a_text_is_by_its_loss() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    fs::write(&file, "the cat sat on the mat. ".repeat(40)).unwrap();
    let config = "\
data: {kind: text, length: 24, test: 0.2}
model: {kind: gpt, layers: 1, heads: 2, width: 16}
batch_size: 8
epochs: 6
optimizer: {lr: 0.02}
";
    let trial = Trial { config, ..Trial::new(folder.path()) };
    let (report, _) = trial.set("data.path", &file.display().to_string()).run().unwrap();
    let lowest = report.epochs.iter().min_by(|a, b| a.test_loss.total_cmp(&b.test_loss)).unwrap();
    assert_eq!(report.best_step, Some(lowest.step));
    assert!(report.best_checkpoint.ends_with(format!("step-{:08}.safetensors", lowest.step)));
}

#[test]
fn a_run_that_gets_no_better_stops_early_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    fs::write(&file, table(false)).unwrap();
    let trial = || {
        let trial = Trial { config: CSV, ..Trial::new(folder.path()) };
        trial.set("data.path", &file.display().to_string()).set("early_stop", "3")
    };
    // A rate so low that no test ever gets better than the first one.
    let still = trial().set("epochs", "50").set("optimizer.lr", "1e-12").run().unwrap().0;
    assert!(still.stopped_early && !still.interrupted);
    assert_eq!(still.epochs.len() as u64, 1 + 3, "the first one is the best");
    // Going on changes nothing: it had stopped.
    let again = Trial { resume: Some(&still.checkpoint), ..trial() };
    let again = again.set("epochs", "50").set("optimizer.lr", "1e-12").run().unwrap().0;
    assert_eq!((again.steps, again.stopped_early), (still.steps, true));
    let learned = trial().set("epochs", "2").run().unwrap().0;
    assert!(!learned.stopped_early && learned.epochs.len() == 2);
}

#[test]
fn weights_make_a_rare_class_count() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rare.csv");
    // One in twenty is rare, and lies among the common ones on one side.
    let mut text = String::from("x,kind\n");
    for at in 0..1000 {
        let wave = (f64::from(at) * 0.7).sin();
        let rare = at % 20 == 0;
        let _ = writeln!(
            text,
            "{},{}",
            if rare { 0.5 + 0.5 * wave } else { wave },
            if rare { "rare" } else { "common" }
        );
    }
    fs::write(&file, text).unwrap();
    let recall = |weights: &str| {
        let trial = Trial { config: CSV, ..Trial::new(folder.path()) };
        let trial = trial.set("data.path", &file.display().to_string());
        let report = trial.set("data.class_weights", weights).run().unwrap().0;
        report.confusion.unwrap().classes()[1].recall.unwrap()
    };
    assert_eq!(recall("equal"), 0.0, "the common class is always the safe guess");
    assert!(recall("balanced") > 0.6);
    assert!(recall("{rare: 30}") > 0.6);
}

#[test]
fn the_last_test_is_told_class_by_class() {
    let folder = tempfile::tempdir().unwrap();
    let report = Trial::new(folder.path()).run().unwrap().0;
    let confusion = report.confusion.unwrap();
    let samples: u64 = confusion.counts.iter().flatten().sum();
    let right: u64 = (0..10).map(|class| confusion.counts[class][class]).sum();
    assert_eq!(samples, 359, "a fifth of the digits");
    assert!((right as f64 / 359.0 - report.test_accuracy).abs() < 1e-12);
}

#[test]
fn a_text_is_learned_character_by_character() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    fs::write(&file, "the cat sat on the mat. ".repeat(60)).unwrap();
    let config = "\
data: {kind: text, length: 24, test: 0.2}
model: {kind: gpt, layers: 2, heads: 2, width: 32}
batch_size: 16
steps: 60
optimizer: {lr: 0.01, warmup: 5}
clip_norm: 1.0
";
    let trial = Trial { config, ..Trial::new(folder.path()) };
    let (report, _) = trial.set("data.path", &file.display().to_string()).run().unwrap();
    assert!(report.test_accuracy > 0.9, "{} {}", report.test_accuracy, report.test_loss);
}

#[test]
fn a_step_with_inf_is_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    // Finite numbers whose sums are not.
    fs::write(&file, table(false) + "3e38,3e38,a\n").unwrap();
    let trial = Trial { config: CSV, ..Trial::new(folder.path()) }
        .set("data.path", &file.display().to_string())
        .set("data.normalise", "false")
        .set("data.test", "0.1");
    let (report, news) = trial.run().unwrap();
    assert_eq!(report.skipped_steps, 8, "one step of each epoch");
    let told = news.iter().filter(|news| matches!(news, TrainEvent::SkippedStep { .. })).count();
    assert_eq!(told, 8);
    assert!(report.test_accuracy > 0.9, "{}", report.test_accuracy);
}
