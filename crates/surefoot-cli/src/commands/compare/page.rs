//! A comparison as a page.

use surefoot_report::{Challenge, Evidence, Site, Verdict};
use surefoot_verify::decision;
use surefoot_verify::report::Page;
use surefoot_verify::transcript::Transcript;

/// The page of a transcript, as HTML.
pub(super) fn html(transcript: &Transcript) -> std::io::Result<Vec<u8>> {
    let mut html = Vec::new();
    evidence(transcript).write(&mut html)?;
    Ok(html)
}

fn evidence(transcript: &Transcript) -> Evidence {
    let page = Page::new(transcript);
    let decision = &transcript.comparison.decision;
    let ten = |ln: f64| ln / std::f64::consts::LN_10;
    Evidence {
        title: format!("{} against {}", page.candidate, page.reference),
        verdict: match page.verdict {
            decision::Verdict::Same => Verdict::Same,
            decision::Verdict::Different => Verdict::Different,
            decision::Verdict::Undecided => Verdict::Undecided,
        },
        summary: page.sentences.join(" "),
        alpha: transcript.rule.alpha,
        beta: transcript.rule.beta,
        challenges: page
            .curve
            .iter()
            .map(|evidence| Challenge {
                against_same: ten(evidence.ln_e_different),
                against_different: ten(evidence.ln_e_same),
            })
            .collect(),
        challenges_used: page.challenges_used,
        sites: page
            .sites
            .iter()
            .map(|site| Site {
                name: site.site.to_string(),
                distance: site.distance.fine,
                tolerance: site.tolerance,
                bits: site.distance.hamming,
                first_to_diverge: decision.first_diverging == Some(site.site),
            })
            .collect(),
        facts: page.facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
    }
}
