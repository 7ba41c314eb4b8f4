//! The evaluation: every figure is about messages that neither the rules nor the model had seen,
//! except where the report says otherwise.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;

use surefoot_core::fault::FaultKind;
use surefoot_explain::explain;
use surefoot_explain::learned::{KINDS, Model, RULES_SURE_ABOVE, decide, doubt};

use crate::data::{self, Message};
use crate::fit::{calibrated, fold_of, model_of};
use crate::measures::{
    Prediction, calibration_error, confusion_table, confusions, per_kind, share,
};

/// Rounds that came together: the rules were the same before all of them.
const STEPS: &[&[&str]] = &[
    &["2", "3"],
    &["A-E"],
    &["F"],
    &["G", "H", "I", "J", "K", "L", "lists"],
    &["M", "N"],
    &["O", "P"],
    &["Q", "R"],
    &["S"],
];

/// What would have been said about a message, given the rules' answer from before.
fn predict(model: &Model, message: &Message, rules: (FaultKind, f32)) -> Prediction {
    let decision = decide(model, &message.message, rules.0, rules.1);
    let learned = model.scores(&message.message).map_or(FaultKind::NotDeviceRelated, |scores| {
        let best = (0..KINDS.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        KINDS[best.unwrap_or_default()]
    });
    Prediction {
        truth: message.label,
        rules,
        kind: decision.map_or(rules.0, |decision| decision.kind),
        confidence: decision.map_or(rules.1, |decision| decision.confidence),
        second: match decision {
            Some(decision) => decision.plausible_second(),
            None if rules.1 > RULES_SURE_ABOVE => doubt(model, &message.message, rules.0),
            None => None,
        }
        .map(|(kind, _)| kind),
        learned,
    }
}

fn before(message: &Message) -> Option<(FaultKind, f32)> {
    message.rules_before.map(|before| (before.kind, before.confidence))
}

fn line(name: &str, all: &[Prediction]) {
    let unsure: Vec<Prediction> = all.iter().copied().filter(|one| one.rules.1 <= 0.5).collect();
    let error = calibration_error(all.iter().map(|one| (one.confidence, one.right())));
    println!(
        "| {name} | {} | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {} | {:.1} % | {:.1} % | {error:.3} |",
        all.len(),
        share(all, |one| one.rules.0 == one.truth),
        share(all, |one| one.learned == one.truth),
        share(all, Prediction::right),
        share(all, |one| one.right() || one.second == Some(one.truth)),
        unsure.len(),
        share(&unsure, |one| one.rules.0 == one.truth),
        share(&unsure, Prediction::right),
    );
}

fn heading() {
    println!(
        "| round | messages | rules | model alone | both | or second guess | rules unsure | there: rules | there: both | calibration error |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
}

pub(crate) fn report() -> Result<(), Box<dyn Error>> {
    let all = data::all()?;
    let ordinary = data::ordinary()?;
    println!("### Each round before anything was tuned or trained on it\n");
    heading();
    let fresh = round_by_round(&all, &ordinary);
    line("all of these", &fresh);
    println!(
        "\n### Sources left out (10 folds; the rules' answers are those from before each round)\n"
    );
    heading();
    let by_source = left_out(&all, &ordinary, |message| Some(fold_of(message.group(), 10)));
    line("by repository or site", &by_source);
    println!("\n### Frameworks left out of training\n");
    heading();
    let frameworks = frameworks(&all);
    let mut together = Vec::new();
    for (number, framework) in frameworks.iter().enumerate() {
        let of = |message: &Message| (family(&message.framework) == framework).then_some(number);
        let found = left_out(&all, &ordinary, of);
        line(framework, &found);
        together.extend(found);
    }
    line("all of these", &together);
    println!("\n### Learning curve: the model on rounds Q, R and S\n");
    curve(&all, &ordinary);
    println!("\n### By kind: each round before it was seen\n\n{}", per_kind(&fresh));
    println!("### Commonest confusions\n\n{}", confusions(&fresh, 12));
    println!("### Confusion table\n\n{}", confusion_table(&fresh));
    println!("### Rounds that the rules were not tuned on and the model was not trained on\n");
    heading();
    new_rounds()
}

/// The latest rounds, predicted from all earlier ones.
pub(crate) fn latest() -> Result<(), Box<dyn Error>> {
    let all = data::all()?;
    let last = |message: &&Message| ["Q", "R", "S"].contains(&message.round.as_str());
    let known: Vec<&Message> = all.iter().filter(|message| !last(message)).collect();
    let model = calibrated(&known, &data::ordinary()?);
    let found: Vec<Prediction> = all
        .iter()
        .filter(last)
        .filter_map(|message| Some(predict(&model, message, before(message)?)))
        .collect();
    heading();
    line("Q, R and S", &found);
    let sure: Vec<&Prediction> =
        found.iter().filter(|one| one.rules.1 > RULES_SURE_ABOVE).collect();
    let doubted = sure.iter().filter(|one| one.second.is_some()).count();
    let wrong = sure.iter().filter(|one| !one.right()).count();
    let caught = sure.iter().filter(|one| one.second == Some(one.truth)).count();
    println!(
        "of {} that the rules are sure of, {wrong} are wrong; {doubted} have a second guess, which is right for {caught}",
        sure.len()
    );
    Ok(())
}

/// Trains on what came before each step, and predicts the step's rounds.
fn round_by_round(all: &[Message], ordinary: &[String]) -> Vec<Prediction> {
    let mut seen: Vec<&str> = vec!["samples", "1"];
    let mut fresh = Vec::new();
    for step in STEPS {
        let known: Vec<&Message> =
            all.iter().filter(|message| seen.contains(&message.round.as_str())).collect();
        let model = calibrated(&known, ordinary);
        for round in *step {
            let found: Vec<Prediction> = all
                .iter()
                .filter(|message| message.round == *round)
                .filter_map(|message| Some(predict(&model, message, before(message)?)))
                .collect();
            line(round, &found);
            fresh.extend(found);
        }
        seen.extend(*step);
    }
    fresh
}

/// Predicts the messages of each fold with a model of all others.
fn left_out(
    all: &[Message],
    ordinary: &[String],
    fold: impl Fn(&Message) -> Option<usize>,
) -> Vec<Prediction> {
    let folds: std::collections::BTreeSet<usize> = all.iter().filter_map(&fold).collect();
    let mut found = Vec::new();
    for number in folds {
        let rest: Vec<&Message> =
            all.iter().filter(|message| fold(message) != Some(number)).collect();
        let mut model = model_of(rest.iter().copied(), ordinary);
        // The embedded calibration: three numbers, fitted on folds of their own.
        if let Some(embedded) = Model::embedded() {
            model.calibration = embedded.calibration;
        }
        let inside = all.iter().filter(|message| fold(message) == Some(number));
        found.extend(inside.filter_map(|message| Some(predict(&model, message, before(message)?))));
    }
    found
}

/// `pytorch-mps` and `pytorch-cuda` are one family.
fn family(framework: &str) -> &str {
    framework.split('-').next().unwrap_or(framework)
}

/// The families with at least 60 messages, except those that name no framework.
fn frameworks(all: &[Message]) -> Vec<String> {
    let mut counts = BTreeMap::new();
    for message in all.iter().filter(|message| message.rules_before.is_some()) {
        *counts.entry(family(&message.framework)).or_insert(0) += 1;
    }
    counts.retain(|name, count| *count >= 60 && !["any", "various"].contains(name));
    counts.into_keys().map(str::to_owned).collect()
}

fn curve(all: &[Message], ordinary: &[String]) {
    println!("| share of the earlier messages | messages | model alone | both |");
    println!("| ---: | ---: | ---: | ---: |");
    let last = |message: &&Message| ["Q", "R", "S"].contains(&message.round.as_str());
    let test: Vec<&Message> = all.iter().filter(last).collect();
    for eighths in [1, 2, 4, 8] {
        let known: Vec<&Message> = all
            .iter()
            .filter(|message| !last(message) && fold_of(message.group(), 8) < eighths)
            .collect();
        let model = calibrated(&known, ordinary);
        let found: Vec<Prediction> = test
            .iter()
            .filter_map(|message| Some(predict(&model, message, before(message)?)))
            .collect();
        println!(
            "| {eighths}/8 | {} | {:.1} % | {:.1} % |",
            known.len(),
            share(&found, |one| one.learned == one.truth),
            share(&found, Prediction::right)
        );
    }
}

/// The rounds in `tests/data/rounds`, with the rules and the model as they are now.
fn new_rounds() -> Result<(), Box<dyn Error>> {
    let mut names: Vec<String> = fs::read_dir(data::folder().join("tests/data/rounds"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".jsonl"))
        .collect();
    names.sort();
    let Some(model) = Model::embedded() else {
        return Err("there is no model yet: run `train` first".into());
    };
    for name in names {
        let messages = data::messages(&format!("rounds/{name}"))?;
        let found: Vec<Prediction> = messages
            .iter()
            .map(|message| {
                let rules = surefoot_explain::explain_by_rules(&message.message);
                let prediction = predict(model, message, (rules.kind, rules.confidence));
                assert_eq!(prediction.kind, explain(&message.message).kind, "{}", message.message);
                prediction
            })
            .collect();
        line(name.trim_end_matches(".jsonl"), &found);
    }
    Ok(())
}
