//! What is measured about predictions.

use std::collections::BTreeMap;

use surefoot_core::fault::FaultKind;
use surefoot_explain::learned::KINDS;

/// One message with a known kind, and what was said about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    pub(crate) truth: FaultKind,
    /// What the rules alone say, with their confidence.
    pub(crate) rules: (FaultKind, f32),
    /// What rules and model say together.
    pub(crate) kind: FaultKind,
    pub(crate) confidence: f32,
    /// The second guess that would be shown.
    pub(crate) second: Option<FaultKind>,
    /// What the model alone says.
    pub(crate) learned: FaultKind,
}

impl Prediction {
    pub(crate) fn right(&self) -> bool {
        self.kind == self.truth
    }
}

pub(crate) fn share(all: &[Prediction], right: impl Fn(&Prediction) -> bool) -> f64 {
    100.0 * all.iter().filter(|one| right(one)).count() as f64 / all.len().max(1) as f64
}

/// Expected calibration error over ten equal bins of confidence, as a share of 1.
pub(crate) fn calibration_error(pairs: impl Iterator<Item = (f32, bool)>) -> f64 {
    let mut bins = [(0.0_f64, 0.0_f64, 0_usize); 10];
    for (confidence, right) in pairs {
        let bin = &mut bins[((confidence * 10.0) as usize).min(9)];
        bin.0 += f64::from(confidence);
        bin.1 += f64::from(u8::from(right));
        bin.2 += 1;
    }
    let total: usize = bins.iter().map(|bin| bin.2).sum();
    bins.iter().map(|(said, right, _)| (said - right).abs()).sum::<f64>() / total.max(1) as f64
}

/// Precision and recall of each kind as a table.
pub(crate) fn per_kind(all: &[Prediction]) -> String {
    let mut table = String::from(
        "| kind | messages | precision | recall | named second where missed |\n| --- | ---: | ---: | ---: | ---: |\n",
    );
    for kind in KINDS {
        let count = |of: &dyn Fn(&Prediction) -> bool| all.iter().filter(|one| of(one)).count();
        let truth = count(&|one| one.truth == kind);
        let said = count(&|one| one.kind == kind);
        let right = count(&|one| one.truth == kind && one.kind == kind);
        let second = count(&|one| one.truth == kind && !one.right() && one.second == Some(kind));
        let percent = |of: usize| 100.0 * right as f64 / of.max(1) as f64;
        table += &format!(
            "| `{kind}` | {truth} | {:.0} % | {:.0} % | {second} of {} |\n",
            percent(said),
            percent(truth),
            truth - right
        );
    }
    table
}

/// The commonest confusions, most frequent first.
pub(crate) fn confusions(all: &[Prediction], most: usize) -> String {
    let mut counts = BTreeMap::new();
    for one in all.iter().filter(|one| !one.right()) {
        *counts.entry((one.truth, one.kind)).or_insert(0_usize) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(pair, count)| (std::cmp::Reverse(count), pair));
    let mut table = String::from("| is | taken for | messages |\n| --- | --- | ---: |\n");
    for ((truth, said), count) in counts.into_iter().take(most) {
        table += &format!("| `{truth}` | `{said}` | {count} |\n");
    }
    table
}

/// The whole confusion table: a row for what is, a column for what was said.
pub(crate) fn confusion_table(all: &[Prediction]) -> String {
    let mut table = format!(
        "| is \\ said |{}\n|---|",
        KINDS.map(|kind| format!(" {} |", short(kind))).concat()
    );
    table += &"---:|".repeat(KINDS.len());
    table.push('\n');
    for truth in KINDS {
        table += &format!("| `{truth}` |");
        for said in KINDS {
            let count = all.iter().filter(|one| one.truth == truth && one.kind == said).count();
            table += &if count == 0 { " · |".to_owned() } else { format!(" {count} |") };
        }
        table.push('\n');
    }
    table
}

fn short(kind: FaultKind) -> String {
    kind.as_str().split('_').map(|word| &word[..word.len().min(3)]).collect::<Vec<_>>().join(" ")
}
