//! What is told apart, as a table: the verdict, the challenges it took, the layer, and how well a
//! single challenge separates the case from benign runs (AUC).
//!
//!     cargo bench --workspace --bench apart

use surefoot_verify::challenge::ChallengeSet;
use surefoot_verify::compare::compare;
use surefoot_verify::decision::{DecisionRule, Verdict};
use surefoot_verify::fingerprint::Fingerprint;
use surefoot_verify::noise::NoiseClass;

#[path = "../tests/lab/mod.rs"]
mod lab;

fn main() {
    let shelf = lab::TestModels::new();
    let set = ChallengeSet::keyed([5; 32], "table", lab::VOCAB, 32, 32).expect("challenges");
    let reference = lab::fingerprint(&shelf.reference, &set, lab::Options::new());
    let rule = DecisionRule::default();
    let runs: Vec<_> = lab::cases(&shelf)
        .into_iter()
        .map(|case| {
            let options = lab::Options { pass: case.pass, ..lab::Options::candidate() };
            let candidate = lab::fingerprint(&case.folder, &set, options);
            let found = compare(&reference, &candidate, &rule).expect("a comparison");
            let scores = scores(&reference, &candidate, found.class);
            (case, found, scores)
        })
        .collect();
    let benign = |class: NoiseClass| -> Vec<f64> {
        let of_class = runs
            .iter()
            .filter(|(case, found, _)| case.verdict == Verdict::Same && found.class == class);
        of_class.flat_map(|(_, _, scores)| scores.clone()).collect()
    };
    println!("| model | allowed for | verdict | challenges | first site | AUC of one challenge |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (case, found, scores) in &runs {
        let decision = &found.decision;
        let area = match case.verdict {
            Verdict::Different => format!("{:.4}", auc(&benign(found.class), scores)),
            _ => "–".to_owned(),
        };
        println!(
            "| {} | {} | {} | {} | {} | {area} |",
            case.name,
            match found.class {
                NoiseClass::Arithmetic => "order of sums",
                NoiseClass::Rounding => "rounding",
            },
            decision.verdict,
            decision.challenges_used,
            decision.first_diverging.map_or("–".to_owned(), |site| site.to_string()),
        );
    }
}

/// For each challenge the largest deviation in units of its tolerance.
fn scores(reference: &Fingerprint, candidate: &Fingerprint, class: NoiseClass) -> Vec<f64> {
    let (challenges, sites) = (reference.sketches.len(), reference.sites.len());
    let tolerances = reference.noise.tolerances(class, challenges, sites).expect("tolerances");
    let theirs = candidate.site_list();
    (0..challenges)
        .map(|challenge| {
            let at_site = |(site, kept): (usize, &surefoot_verify::fingerprint::KeptSite)| {
                let other = theirs.iter().position(|it| *it == kept.site)?;
                let apart = reference.sketches[challenge][site]
                    .distance(&candidate.sketches[challenge][other]);
                let fine = apart.fine / tolerances.fine[challenge][site];
                Some(fine.max(apart.profile / tolerances.profile[site]))
            };
            reference.sites.iter().enumerate().filter_map(at_site).fold(0.0, f64::max)
        })
        .collect()
}

/// The chance that a changed model's challenge scores above a benign one's.
fn auc(benign: &[f64], changed: &[f64]) -> f64 {
    let mut above = 0.0;
    for one in changed {
        for other in benign {
            above += match one.total_cmp(other) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            };
        }
    }
    above / (benign.len() * changed.len()) as f64
}
