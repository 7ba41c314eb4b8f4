//! What each form of the weights would need and give, side by side, and which to take.

use serde::Serialize;

use super::plan::{Placement, Plan};
use super::rate::Rate;
use crate::weights::choice::WeightChoice;

/// A model in one form of its weights.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ChoicePlan {
    /// The form, as on the command line.
    pub weights: &'static str,
    /// Bytes of all matrices in memory.
    pub weight_bytes: u64,
    /// Whether the work can be done in the budget.
    pub fits: bool,
    /// Where the matrices will be.
    pub mode: Placement,
    /// The most bytes in use.
    pub peak_bytes: u64,
    /// Tokens a second of one sequence. Where weights are quantised and streamed: of a folder that was quantised
    /// once, since doing so in every pass is slower.
    pub tokens_per_second: f64,
    /// `disk`, `conversion` or `compute`.
    pub limited_by: &'static str,
    /// Whether that takes a folder that was quantised once, with `surefoot quantize`.
    pub quantize_first: bool,
}

impl ChoicePlan {
    /// Of a plan in which weights have the form of `choice`, and take `file_bytes` in their files.
    pub(crate) fn new(choice: WeightChoice, plan: &Plan, rate: &Rate, file_bytes: u64) -> Self {
        let weight_bytes: u64 = plan.parts.iter().map(|part| part.bytes).sum();
        let quantize_first = choice != WeightChoice::AsStored && plan.mode != Placement::Resident;
        let (tokens_per_second, limited_by) = match quantize_first {
            true => {
                let smaller = weight_bytes as f64 / file_bytes.max(1) as f64;
                rate.with_streamed(plan.streamed_file_bytes as f64 * smaller)
            }
            false => (rate.tokens_per_second, rate.limited_by),
        };
        Self {
            weights: choice.as_str(),
            weight_bytes,
            fits: plan.fits,
            mode: plan.mode,
            peak_bytes: plan.peak_bytes,
            tokens_per_second,
            limited_by,
            quantize_first,
        }
    }
}

/// The form to take: the most exact one of which all weights stay in memory; if there is none, the fastest of those that
/// can be run at all.
pub fn recommended(choices: &[ChoicePlan]) -> Option<&ChoicePlan> {
    let runs = || choices.iter().filter(|choice| choice.fits);
    runs()
        .find(|choice| choice.mode == Placement::Resident)
        .or_else(|| runs().max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(weights: &'static str, fits: bool, mode: Placement, rate: f64) -> ChoicePlan {
        ChoicePlan {
            weights,
            weight_bytes: 1,
            fits,
            mode,
            peak_bytes: 1,
            tokens_per_second: rate,
            limited_by: "disk",
            quantize_first: false,
        }
    }

    #[test]
    fn the_most_exact_form_that_stays_in_memory_is_recommended() {
        use Placement::{Mixed, Resident, Streamed};
        let name = |choices: &[ChoicePlan]| recommended(choices).map(|choice| choice.weights);
        let (exact, q8) =
            (choice("as-stored", true, Mixed, 1.0), choice("q8", true, Resident, 5.0));
        let q4 = choice("q4", true, Resident, 9.0);
        assert_eq!(name(&[exact.clone(), q8, q4]), Some("q8"));
        let all = choice("as-stored", true, Resident, 1.0);
        assert_eq!(name(&[all, choice("q4", true, Resident, 3.0)]), Some("as-stored"));
        let slow = [exact, choice("q8", true, Mixed, 2.0), choice("q4", true, Streamed, 3.0)];
        assert_eq!(name(&slow), Some("q4"));
        assert_eq!(name(&[choice("q4", false, Streamed, 3.0)]), None);
    }
}
