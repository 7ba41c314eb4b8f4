//! The rules. Each reads the facts of one file and adds findings; each has a page that says what
//! it finds, why that matters, what to write instead and when to ignore it.

mod autocast_device;
mod cpu_fallback;
mod device_map_on_mps;
mod dropped_move;
mod empty_cache;
mod evaluation;
mod hard_coded_cuda;
mod host_sync;
mod input_device;
mod is_built;
mod kept_graph;
mod late_fallback;
mod loaders;
mod missing_scaler;
mod mixed_devices;
mod mps_dtypes;
mod optimizer_order;
mod out_of_memory;
mod temporaries;
mod threads_on_mps;
mod timing;
mod torch_load;
mod uninitialised;
mod varying_shapes;
mod zero_grad;

use ruff_text_size::TextRange;

use crate::finding::{Edit, Finding, Fix, Severity};
use crate::model::Facts;

/// A rule: its code, what it is about, and how it is checked.
#[derive(Debug)]
pub struct CheckRule {
    /// Such as `SF001`.
    pub code: &'static str,
    /// Such as `uninitialised-memory`.
    pub name: &'static str,
    /// How bad its findings are.
    pub severity: Severity,
    /// What it finds, in one line.
    pub summary: &'static str,
    /// Whether some of its findings can be mended by `--fix`.
    pub fixable: bool,
    /// The page in Markdown.
    pub page: &'static str,
    pub(crate) check: fn(&Facts<'_>, &mut Findings),
}

impl CheckRule {
    pub(crate) fn apply(&self, facts: &Facts<'_>, findings: &mut Findings) {
        (self.check)(facts, findings);
    }
}

/// Whether it is the rule about `torch.load` running code from a file, which projects that ask for a
/// recent torch need not obey.
pub(crate) fn is_about_pickle(rule: &'static CheckRule) -> bool {
    std::ptr::eq(rule, &torch_load::PICKLE)
}

/// The findings so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
}

impl Findings {
    /// Adds a finding; the caller may give it a fix.
    fn add(
        &mut self,
        rule: &CheckRule,
        range: TextRange,
        message: String,
        help: &str,
    ) -> &mut Finding {
        let at = self.list.len();
        self.list.push(Finding {
            code: rule.code,
            severity: rule.severity,
            range,
            message,
            help: help.to_owned(),
            fix: None,
        });
        &mut self.list[at]
    }

    pub(crate) fn into_list(self) -> Vec<Finding> {
        self.list
    }
}

/// A fix of one edit.
fn fix(title: &str, range: TextRange, text: impl Into<String>) -> Option<Fix> {
    Some(Fix { title: title.to_owned(), edits: vec![Edit { range, text: text.into() }] })
}

/// All rules, by code.
pub static ALL: [&CheckRule; 34] = [
    &uninitialised::RULE,
    &input_device::RULE,
    &mixed_devices::RULE,
    &dropped_move::RULE,
    &is_built::RULE,
    &hard_coded_cuda::RULE,
    &loaders::PIN_MEMORY,
    &loaders::WORKERS,
    &loaders::PERSISTENT,
    &optimizer_order::RULE,
    &zero_grad::MISSING,
    &zero_grad::MISPLACED,
    &kept_graph::LOSS,
    &kept_graph::OUTPUT,
    &evaluation::GRADIENTS,
    &evaluation::MODE,
    &mps_dtypes::FLOAT64,
    &mps_dtypes::HALF,
    &autocast_device::RULE,
    &missing_scaler::RULE,
    &out_of_memory::SWALLOWED,
    &out_of_memory::RETRIED,
    &empty_cache::RULE,
    &torch_load::DEVICE,
    &torch_load::PICKLE,
    &late_fallback::RULE,
    &timing::RULE,
    &temporaries::RULE,
    &host_sync::RULE,
    &threads_on_mps::RULE,
    &device_map_on_mps::RULE,
    &varying_shapes::RULE,
    &crate::requirements::RULE,
    &cpu_fallback::RULE,
];

/// The rule of this code, in whatever case.
pub fn find(code: &str) -> Option<&'static CheckRule> {
    ALL.iter().copied().find(|rule| rule.code.eq_ignore_ascii_case(code) || rule.name == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_pages_are_whole() {
        for (i, rule) in ALL.iter().enumerate() {
            assert_eq!(rule.code, format!("SF{:03}", i + 1));
            let title = format!("# {}: {}\n", rule.code, rule.name);
            assert!(rule.page.starts_with(&title), "{}", rule.code);
            for heading in ["## What", "## Why", "## Bad", "## Good", "## When to ignore"] {
                assert!(rule.page.contains(heading), "{} has no {heading}", rule.code);
            }
        }
    }

    #[test]
    fn rules_are_found_by_code_and_by_name() {
        assert_eq!(find("sf009").map(|rule| rule.code), Some("SF009"));
        assert_eq!(find("missing-zero-grad").map(|rule| rule.code), Some("SF011"));
        assert!(find("SF999").is_none());
    }
}
