//! The errors that are asked about most: for each its causes in order, what to change, the settings
//! that help with what they cost, known bugs, and our own commands that help.
//!
//! `docs/errors` is generated from the same data (`page`): `cargo run --release -p surefoot-explain
//! --example error_pages` writes it, and a test compares.

mod amd_intel;
mod cuda;
mod files;
mod memory;
mod metal;
mod page;
mod placement;
mod runtimes;
mod rust_frameworks;
mod serving;

use serde::Serialize;
use surefoot_core::fault::FaultKind;

pub use page::{index, page};

/// One error that is asked about often.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Guide {
    /// Name of the page under `docs/errors`, without its ending.
    pub name: &'static str,
    /// The kind of fault.
    pub kind: FaultKind,
    /// The message as people search for it.
    pub message: &'static str,
    /// What happened.
    pub meaning: &'static str,
    /// The likely causes, likeliest first.
    pub causes: &'static [&'static str],
    /// What to change in the code.
    pub changes: &'static [Change],
    /// Environment variables and options that help, with what they cost.
    pub settings: &'static [Setting],
    /// Bugs and decisions of the framework that matter here, with their address.
    pub references: &'static [Reference],
    /// Commands of this program that help.
    pub commands: &'static [Command],
    /// Lower-case words that tell this error from others of its kind; one of them is in the text.
    #[serde(skip)]
    words: &'static [&'static str],
}

/// Lines to change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Why, in one line.
    pub why: &'static str,
    /// What the lines are written in: `python`, `rust` or `sh`.
    pub language: &'static str,
    /// As it is.
    pub before: &'static str,
    /// As it should be.
    pub after: &'static str,
}

/// An environment variable or option.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// Name and value.
    pub name: &'static str,
    /// What it does.
    pub effect: &'static str,
    /// What it costs.
    pub cost: &'static str,
}

/// A public thread or page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Reference {
    /// What it says.
    pub says: &'static str,
    /// Where.
    pub address: &'static str,
}

/// A command of this program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Command {
    /// The command line.
    pub line: &'static str,
    /// What it does for this error.
    pub does: &'static str,
}

const CHECK: Command = Command {
    line: "surefoot check .",
    does: "finds the places in a PyTorch project that lead to this, with fixes",
};
const DOCTOR: Command = Command {
    line: "surefoot doctor",
    does: "says which devices are visible, whether they compute correctly, and which driver they have",
};
const PLAN: Command = Command {
    line: "surefoot plan MODEL",
    does: "says before loading how much memory a model needs and where it would be placed",
};

const fn change(why: &'static str, before: &'static str, after: &'static str) -> Change {
    change_in("python", why, before, after)
}

const fn change_in(
    language: &'static str,
    why: &'static str,
    before: &'static str,
    after: &'static str,
) -> Change {
    Change { why, language, before, after }
}

const fn setting(name: &'static str, effect: &'static str, cost: &'static str) -> Setting {
    Setting { name, effect, cost }
}

const fn reference(says: &'static str, address: &'static str) -> Reference {
    Reference { says, address }
}

/// All guides, in the order of the documentation. Those of one framework come before those that hold for several,
/// whose words are in its messages too.
pub fn all() -> impl Iterator<Item = &'static Guide> {
    [
        serving::GUIDES,
        runtimes::GUIDES,
        rust_frameworks::GUIDES,
        amd_intel::GUIDES,
        memory::GUIDES,
        placement::GUIDES,
        metal::GUIDES,
        cuda::GUIDES,
        files::GUIDES,
    ]
    .into_iter()
    .flatten()
}

/// The guide for a text of this kind: the first of the kind that has one of its words.
pub(crate) fn find(kind: FaultKind, text: &str) -> Option<&'static Guide> {
    let text = text.to_ascii_lowercase();
    all().find(|guide| guide.kind == kind && guide.words.iter().any(|word| text.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_twenty_guides_or_more_and_each_is_found_by_its_own_message() {
        assert!(all().count() >= 20);
        for guide in all() {
            let found = crate::explain(guide.message);
            assert_eq!(found.kind, guide.kind, "{}", guide.name);
            let page = find(found.kind, guide.message).map(|found| found.name);
            assert_eq!(page, Some(guide.name), "{}", guide.message);
            assert!(!guide.causes.is_empty() && !guide.commands.is_empty(), "{}", guide.name);
            assert!(!(guide.changes.is_empty() && guide.settings.is_empty()), "{}", guide.name);
        }
    }
}
