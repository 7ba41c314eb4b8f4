//! A comparison for people: one page that needs nothing else. Verdict, evidence over challenges,
//! deviation at each site.

use std::fmt::Write as _;

use serde::Serialize;

use crate::compare::SiteResult;
use crate::decision::{Evidence, Verdict};
use crate::noise::Class;
use crate::transcript::{Candidate, Transcript};

/// What the page shows.
#[derive(Clone, Debug, Serialize)]
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
    /// The evidence that DIFFERENT and SAME need, as natural logarithms.
    pub needed: [f64; 2],
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
            Class::Arithmetic => "Weights are stored in the same dtypes and were run in the same \
                 precision on a device whose noise is known: only other orders of summation were \
                 allowed for."
                .to_owned(),
            Class::Rounding => {
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
            needed: [-rule.alpha.ln(), -rule.beta.ln()],
            sites: &transcript.comparison.sites,
            facts,
        }
    }
}

const STYLE: &str = "\
:root{--ground:#fff;--ink:#1c1c1e;--dim:#6b6b70;--line:#d8d8dc;--no:#c0392b;--yes:#1f7a4d;--maybe:#9a6a00}
@media(prefers-color-scheme:dark){:root{--ground:#18181a;--ink:#ececee;--dim:#9b9ba1;--line:#3a3a3e;\
--no:#ff7b6b;--yes:#5fd39a;--maybe:#e5b34a}}
body{background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif;max-width:46rem;\
margin:2rem auto;padding:0 1rem}
h1{font-size:2.2rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .3rem}p{margin:.5rem 0}
.same{color:var(--yes)}.different{color:var(--no)}.undecided{color:var(--maybe)}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--dim)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{text-align:right;padding:.15rem .4rem;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left}
code{font-size:.8rem;overflow-wrap:anywhere;color:var(--dim)}.dim{color:var(--dim)}";

/// The page of a transcript.
pub fn html(transcript: &Transcript) -> String {
    let page = Page::new(transcript);
    let verdict = page.verdict.to_string();
    let sentences: String =
        page.sentences.iter().map(|sentence| format!("<p>{}</p>\n", escaped(sentence))).collect();
    let facts: String = page
        .facts
        .iter()
        .map(|(name, value)| format!("<p class=dim>{name}: <code>{}</code></p>\n", escaped(value)))
        .collect();
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width\">\n\
         <title>{verdict}: {reference} and {candidate}</title>\n<style>{STYLE}</style>\n\
         <h1 class={class}>{verdict}</h1>\n\
         <p class=dim>{candidate}, compared with {reference}; {used} of {all} challenges needed</p>\n\
         {sentences}<h2>Evidence over challenges</h2>\n{curve}\n\
         <h2>Deviation at each site</h2>\n{bars}\n{table}\n{facts}</html>\n",
        reference = escaped(page.reference),
        candidate = escaped(page.candidate),
        class = verdict.to_lowercase(),
        used = page.challenges_used,
        all = page.curve.len(),
        curve = curve(&page),
        bars = bars(page.sites),
        table = table(page.sites),
    )
}

const WIDTH: f64 = 700.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 14.0;
const HEIGHT: f64 = 220.0;

/// Both evidences as powers of ten, with the lines they have to reach.
fn curve(page: &Page<'_>) -> String {
    let ten = |ln: f64| (ln / std::f64::consts::LN_10).clamp(-4.0, 12.0);
    let needed = page.needed.map(ten);
    let values = page.curve.iter().flat_map(|e| [ten(e.ln_e_different), ten(e.ln_e_same)]);
    let most = values.clone().chain(needed).fold(1.0, f64::max) + 0.3;
    let least = values.fold(0.0, f64::min) - 0.3;
    let x = |at: usize| LEFT + (WIDTH - LEFT - 10.0) * at as f64 / page.curve.len().max(1) as f64;
    let y = |value: f64| TOP + HEIGHT * (most - value) / (most - least);
    let line = |of: fn(&Evidence) -> f64, class: &str| {
        let mut points = format!("{:.1},{:.1}", x(0), y(0.0));
        for (at, evidence) in page.curve.iter().enumerate() {
            let _ = write!(points, " {:.1},{:.1}", x(at + 1), y(ten(of(evidence))));
        }
        format!(
            "<polyline points=\"{points}\" fill=none stroke-width=2 stroke=\"var(--{class})\"/>"
        )
    };
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=img aria-label=\"evidence over challenges\">",
        TOP + HEIGHT + 34.0
    );
    let mut power = least.ceil();
    while power <= most {
        let _ = write!(
            svg,
            "<line x1={LEFT} x2={WIDTH} y1={y:.1} y2={y:.1} stroke=\"var(--line)\"/>\
             <text x={:.0} y={:.1} text-anchor=end>10^{power}</text>",
            LEFT - 6.0,
            y(power) + 4.0,
            y = y(power)
        );
        power += ((most - least) / 8.0).ceil();
    }
    for (needed, class) in needed.into_iter().zip(["no", "yes"]) {
        let _ = write!(
            svg,
            "<line x1={LEFT} x2={WIDTH} y1={y:.1} y2={y:.1} stroke=\"var(--{class})\" \
             stroke-dasharray=\"5 4\"/>",
            y = y(needed)
        );
    }
    let stop = x(page.challenges_used);
    let _ = write!(
        svg,
        "<line x1={stop:.1} x2={stop:.1} y1={TOP} y2={:.1} stroke=\"var(--dim)\" \
         stroke-dasharray=\"2 3\"/>",
        TOP + HEIGHT
    );
    svg.push_str(&line(|e| e.ln_e_different, "no"));
    svg.push_str(&line(|e| e.ln_e_same, "yes"));
    let below = TOP + HEIGHT + 24.0;
    let _ = write!(
        svg,
        "<text x={LEFT} y={below:.0} style=\"fill:var(--no)\">against the same</text>\
         <text x={:.0} y={below:.0} style=\"fill:var(--yes)\">against different</text>\
         <text x={WIDTH} y={below:.0} text-anchor=end>{} challenges</text></svg>",
        LEFT + 140.0,
        page.curve.len()
    );
    svg
}

/// Deviation (a bar) and tolerance (a mark) of each site on a logarithmic scale.
fn bars(sites: &[SiteResult]) -> String {
    const ROW: f64 = 18.0;
    const LABEL: f64 = 90.0;
    let log = |value: f64| value.max(1e-8).log10();
    let all = sites.iter().flat_map(|site| [log(site.apart.fine), log(site.tolerance)]);
    let least = all.clone().fold(0.0, f64::min).floor();
    let most = all.fold(least + 1.0, f64::max).ceil();
    let x = |value: f64| LABEL + (WIDTH - LABEL - 10.0) * (log(value) - least) / (most - least);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=img aria-label=\"deviation at each site\">",
        ROW * sites.len() as f64 + 26.0
    );
    for (at, site) in sites.iter().enumerate() {
        let top = ROW * at as f64 + 4.0;
        let class = if site.excess > 0.0 { "no" } else { "yes" };
        let _ = write!(
            svg,
            "<text x={:.0} y={:.1} text-anchor=end>{}</text>\
             <rect x={LABEL} y={top:.1} width={:.1} height={:.1} fill=\"var(--{class})\" opacity=.75>\
             <title>{}: deviation {:.2e}, tolerance {:.2e}</title></rect>\
             <line x1={mark:.1} x2={mark:.1} y1={:.1} y2={:.1} stroke=\"var(--ink)\" stroke-width=2/>",
            LABEL - 6.0,
            top + 11.0,
            site.site,
            (x(site.apart.fine) - LABEL).max(0.5),
            ROW - 5.0,
            site.site,
            site.apart.fine,
            site.tolerance,
            top - 2.0,
            top + ROW - 3.0,
            mark = x(site.tolerance)
        );
    }
    let below = ROW * sites.len() as f64 + 18.0;
    let _ = write!(
        svg,
        "<text x={LABEL} y={below:.0}>10^{least}</text>\
         <text x={WIDTH} y={below:.0} text-anchor=end>10^{most}; the mark is the tolerance</text></svg>"
    );
    svg
}

fn table(sites: &[SiteResult]) -> String {
    let mut rows = String::new();
    for site in sites {
        let _ = writeln!(
            rows,
            "<tr><td>{}<td>{:.2e}<td>{:.2e}<td>{:.2e}<td>{:.2} %<td>{:.2}",
            site.site,
            site.apart.fine,
            site.tolerance,
            site.apart.profile,
            site.apart.hamming * 100.0,
            site.excess
        );
    }
    format!(
        "<table>\n<tr><th>site<th>deviation<th>tolerance<th>profile<th>bits<th>excess\n{rows}</table>"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_not_become_markup() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
