//! The picture: devices, what is on them, and what feeds or trains what, as a Mermaid flowchart.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::story::{Made, Sort, Story};

/// More boxes than this can't be read.
const BOXES: usize = 40;

pub(super) fn render(story: &Story) -> String {
    let mut out = String::from("flowchart LR\n");
    let shown: Vec<&Made> =
        story.made.iter().filter(|made| made.sort != Sort::Tensor).take(BOXES).collect();
    let mut devices: BTreeMap<&str, usize> = BTreeMap::new();
    for made in shown.iter().filter(|made| made.sort == Sort::Model) {
        let next = devices.len();
        devices.entry(&made.device).or_insert(next);
    }
    // Writing to a string can't fail.
    for (device, index) in &devices {
        let _ = writeln!(out, "    d{index}([\"{}\"])", label(device));
    }
    for (index, made) in shown.iter().enumerate() {
        let text = format!("{}: {}", made.name, made.maker);
        let _ = writeln!(out, "    n{index}[\"{}\"]", label(&text));
        match made.sort {
            Sort::Model => {
                let _ = writeln!(out, "    n{index} -->|on| d{}", devices[made.device.as_str()]);
            }
            Sort::Optimizer => {
                let model = shown.iter().position(|other| {
                    other.sort == Sort::Model
                        && Some(&other.name) == made.of.as_ref()
                        && same_file(other, made)
                });
                if let Some(model) = model {
                    let _ = writeln!(out, "    n{index} -->|trains| n{model}");
                }
            }
            Sort::Loader => {
                let model = shown
                    .iter()
                    .position(|other| other.sort == Sort::Model && same_file(other, made));
                if let Some(model) = model {
                    let _ = writeln!(out, "    n{index} -.->|feeds| n{model}");
                }
            }
            Sort::Tensor => {}
        }
    }
    if shown.is_empty() {
        out.push_str("    none[\"no models, loaders or optimizers are made here\"]\n");
    }
    out
}

fn same_file(a: &Made, b: &Made) -> bool {
    let file = |made: &Made| made.place.rsplit_once(':').map(|(file, _)| file.to_owned());
    file(a) == file(b)
}

/// Text that may stand in a box.
fn label(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '"' | '`' | '\n' | '\r' => ' ',
            other => other,
        })
        .collect::<String>()
        .trim()
        .to_owned()
}
