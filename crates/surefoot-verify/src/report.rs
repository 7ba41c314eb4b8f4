//! A comparison for people: what a page of it shows. Verdict, evidence over challenges, deviation
//! at each site.

use crate::compare::SiteResult;
use crate::decision::{Evidence, Verdict};
use crate::noise::NoiseClass;
use crate::transcript::{Candidate, Transcript};

/// What the page shows.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// The answer.
    pub verdict: Verdict,
    /// The name of the reference.
    pub reference: &'a str,
    /// The name of what was compared.
    pub candidate: &'a str,
    /// What it means, in sentences.
    pub sentences: Vec<String>,
    /// The evidence after each challenge.
    pub curve: &'a [Evidence],
    /// The challenges it took.
    pub challenges_used: usize,
    /// The sites.
    pub sites: &'a [SiteResult],
    /// Names and values for the foot of the page.
    pub facts: Vec<(&'static str, String)>,
}

impl<'a> Page<'a> {
    /// What the page of a transcript shows.
    pub fn new(transcript: &'a Transcript) -> Self {
        let reference = &transcript.reference;
        let decision = &transcript.comparison.decision;
        let rule = &transcript.rule;
        let (candidate, weak) = match &transcript.candidate {
            Candidate::Model(model) => (model.model.name.as_str(), None),
            Candidate::Endpoint(answers, weak) => (answers.url.as_str(), Some(weak)),
        };
        let mut sentences = vec![match decision.verdict {
            Verdict::Same => format!(
                "At every site the two deviate by less than the reference deviates from itself when \
                 it is run in other ways. This is wrong with a probability of at most {}.",
                rule.beta
            ),
            Verdict::Different => format!(
                "At some site the two deviate by more than the reference's own noise explains. This \
                 is wrong with a probability of at most {}.",
                rule.alpha
            ),
            Verdict::Undecided => "The challenges ran out before the evidence decided. More \
                 challenges may."
                .to_owned(),
        }];
        if let Some(site) = decision.first_diverging {
            sentences.push(format!("The first site that diverges is {site}."));
        }
        sentences.push(match transcript.comparison.class {
            NoiseClass::Arithmetic => {
                "Weights are stored in the same dtypes and were run in the same \
                 precision on a device whose noise is known: only other orders of summation were \
                 allowed for."
                    .to_owned()
            }
            NoiseClass::Rounding => {
                "Rounding to bf16 was allowed for: a change smaller than that can't \
                 be seen."
                    .to_owned()
            }
        });
        if let Some(weak) = weak {
            sentences.push(format!(
                "This is weak evidence: {} numbers of {} challenges, where a model folder shows {} \
                 of each. Nothing inside the model was seen.",
                weak.numbers, weak.challenges, weak.of_numbers
            ));
        }
        let mut facts = vec![
            ("challenges", reference.commitment.clone()),
            ("reference root", reference.root.clone()),
        ];
        if let Candidate::Model(model) = &transcript.candidate {
            facts.push(("candidate root", model.root.clone()));
        }
        facts.push(("made by", transcript.made_by.clone()));
        Self {
            verdict: decision.verdict,
            reference: &reference.model.name,
            candidate,
            sentences,
            curve: &decision.curve,
            challenges_used: decision.challenges_used,
            sites: &transcript.comparison.sites,
            facts,
        }
    }
}
