//! A model that only shows its answers: an OpenAI-compatible endpoint.
//!
//! Each challenge is sent as token ids for one more token, greedily, with the log-probabilities
//! of the likeliest. Where an endpoint takes no ids, the challenge is sent as text, if it comes
//! back from text as the same ids. Where it gives no log-probabilities, its one token is compared with
//! the reference's likeliest, and only where that one leads by more than noise could turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::compare::{Comparison, SiteResult};
use crate::decision::{self, DecisionRule, excess};
use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;
use crate::noise::{COMPARED_LOGPROBS, NoiseClass, logprob_distance};
use crate::site::Site;
use crate::sketch::{FINE, SketchDistance};

const TIMEOUT: Duration = Duration::from_secs(120);
const MAX_ANSWER: u64 = 1 << 20;
const MAX_TEXT: usize = 1000;

/// What an endpoint showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// Where it is.
    pub url: String,
    /// The model it says it serves.
    pub model: String,
    /// One for each challenge; nothing where it could not be asked.
    pub answers: Vec<Option<Answer>>,
}

/// The answer to a challenge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The next token's text.
    pub text: String,
    /// The log-probabilities of the likeliest tokens, the likeliest first; none if it doesn't say.
    pub logprobs: Vec<f32>,
    /// The text of the token that the reference finds likeliest, if that is known.
    pub expected: Option<String>,
}

/// How much less an endpoint shows than a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weakness {
    /// Challenges that gave evidence.
    pub challenges: usize,
    /// Numbers that were compared for each of them.
    pub numbers: usize,
    /// Numbers that a model folder would have shown.
    pub of_numbers: usize,
}

/// Turns ids to text and back, where there is a tokenizer.
pub trait Tokenizer {
    /// The text of `ids`, if it becomes the same ids again.
    fn text(&self, ids: &[u32]) -> Option<String>;
    /// The text of one token.
    fn token(&self, id: u32) -> Option<String>;
}

/// Asks all challenges of `reference`.
pub fn ask(
    url: &str,
    model: Option<&str>,
    key: Option<&str>,
    reference: &Fingerprint,
    tokenizer: Option<&dyn Tokenizer>,
) -> Result<Answers, VerifyError> {
    if reference.next.is_empty() {
        return Err(VerifyError::incomparable(
            "the reference has no head, so it has no answers to compare an endpoint's with",
        ));
    }
    let client = Client::new(url, key);
    let model = match model {
        Some(model) => model.to_owned(),
        None => client.first_model()?,
    };
    let mut as_text = false;
    let mut answers = Vec::new();
    for (ids, next) in reference.challenges.sequences.iter().zip(&reference.next) {
        let mut answer = None;
        if !as_text {
            match client.complete(&model, json!(ids))? {
                Completion::Answer(found) => answer = Some(found),
                Completion::Refused(_) if tokenizer.is_some() => as_text = true,
                Completion::Refused(why) => return Err(VerifyError::endpoint(&client.base, why)),
            }
        }
        if as_text && let Some(text) = tokenizer.and_then(|tokenizer| tokenizer.text(ids)) {
            match client.complete(&model, json!(text))? {
                Completion::Answer(found) => answer = Some(found),
                Completion::Refused(why) => return Err(VerifyError::endpoint(&client.base, why)),
            }
        }
        if let Some(answer) = &mut answer {
            let likeliest = next.first().map(|token| token.id);
            answer.expected =
                tokenizer.zip(likeliest).and_then(|(tokenizer, id)| tokenizer.token(id));
        }
        answers.push(answer);
    }
    Ok(Answers { url: client.base, model, answers })
}

/// Compares an endpoint's answers with the reference's.
pub fn compare(
    reference: &Fingerprint,
    answers: &Answers,
    rule: &DecisionRule,
) -> Result<(Comparison, Weakness), VerifyError> {
    rule.check()?;
    if answers.answers.len() != reference.next.len() {
        return Err(VerifyError::incomparable("not every challenge has its answer"));
    }
    // Nobody knows how an endpoint computes.
    let class = NoiseClass::Rounding;
    let tolerances =
        reference.noise.tolerances(class, reference.sketches.len(), reference.sites.len())?;
    let mut excesses = Vec::new();
    let mut distances = Vec::new();
    let mut numbers = 0;
    for (next, answer) in reference.next.iter().zip(&answers.answers) {
        let Some(answer) = answer else { continue };
        let logprobs = next.iter().map(|token| token.logprob);
        if let Some(difference) = logprob_distance(logprobs, answer.logprobs.iter().copied()) {
            distances.push(difference);
            excesses.push(vec![excess(difference, tolerances.next)]);
            numbers = numbers.max(answer.logprobs.len().min(COMPARED_LOGPROBS));
        } else if let Some(differs) = text_differs(next, answer, tolerances.next) {
            distances.push(f64::from(u8::from(differs)));
            excesses.push(vec![f64::from(u8::from(differs))]);
            numbers = numbers.max(1);
        }
    }
    if excesses.is_empty() {
        return Err(VerifyError::incomparable(
            "the endpoint's answers can't be compared: it gives no log-probabilities, and texts \
             need a reference whose tokenizer is at hand (name the model folder)",
        ));
    }
    let decision = decision::decide(rule, &[Site::Head], &excesses);
    let mean = distances.iter().sum::<f64>() / distances.len() as f64;
    let site = SiteResult {
        site: Site::Head,
        distance: SketchDistance { fine: mean, ..SketchDistance::default() },
        tolerance: tolerances.next,
        excess: decision.excess[0],
    };
    let of_numbers = reference.sites.len() * (FINE + 2);
    let weakness = Weakness { challenges: excesses.len(), numbers, of_numbers };
    Ok((Comparison { class, decision, sites: vec![site] }, weakness))
}

/// Whether the token is another than the likeliest; nothing if that can't be said.
fn text_differs(
    next: &[crate::capture::NextToken],
    answer: &Answer,
    tolerance: f64,
) -> Option<bool> {
    let expected = answer.expected.as_deref()?.trim();
    let found = answer.text.trim();
    let [first, second, ..] = next else { return None };
    // Both move, each by as much as the tolerance.
    let leads = f64::from(first.logprob - second.logprob) > 2.0 * tolerance;
    (leads && !expected.is_empty() && !found.is_empty()).then(|| expected != found)
}

enum Completion {
    Answer(Answer),
    Refused(String),
}

struct Client {
    agent: ureq::Agent,
    base: String,
    key: Option<String>,
}

impl Client {
    fn new(url: &str, key: Option<&str>) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .build();
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/completions").unwrap_or(base).to_owned();
        Self { agent: config.into(), base, key: key.map(str::to_owned) }
    }

    fn problem(&self, problem: impl Into<String>) -> VerifyError {
        VerifyError::endpoint(&self.base, problem)
    }

    fn read(
        &self,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<(u16, Value), VerifyError> {
        let mut response =
            response.map_err(|error| self.problem(format!("doesn't answer: {error}")))?;
        let status = response.status().as_u16();
        let text = response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_string()
            .map_err(|error| self.problem(format!("its answer can't be read: {error}")))?;
        let json = serde_json::from_str(&text)
            .unwrap_or_else(|_| Value::String(text.chars().take(MAX_TEXT).collect()));
        Ok((status, json))
    }

    fn first_model(&self) -> Result<String, VerifyError> {
        let mut request = self.agent.get(format!("{}/models", self.base));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let (status, json) = self.read(request.call())?;
        let name = json.pointer("/data/0/id").and_then(Value::as_str);
        match name {
            Some(name) if status == 200 => Ok(name.to_owned()),
            _ => Err(self.problem(format!(
                "doesn't name its models (status {status}); is this the base of an OpenAI \
                 interface, as in http://localhost:8000/v1?"
            ))),
        }
    }

    fn complete(&self, model: &str, prompt: Value) -> Result<Completion, VerifyError> {
        let mut request = self.agent.post(format!("{}/completions", self.base));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = json!({
            "model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0,
            "logprobs": COMPARED_LOGPROBS,
        });
        let (status, json) = self.read(request.send_json(&body))?;
        if status == 400 || status == 422 {
            let why = json.pointer("/error/message").and_then(Value::as_str).unwrap_or("no reason");
            let why: String = why.chars().take(200).collect();
            return Ok(Completion::Refused(format!("refuses the challenge: {why}")));
        }
        if status != 200 {
            return Err(self.problem(format!("answers with status {status}")));
        }
        answer(&json)
            .map(Completion::Answer)
            .ok_or_else(|| self.problem("its answer is not an OpenAI completion"))
    }
}

fn answer(json: &Value) -> Option<Answer> {
    let choice = json.pointer("/choices/0")?;
    let text = choice.get("text")?.as_str()?.chars().take(MAX_TEXT).collect();
    let mut logprobs: Vec<f32> = match choice.pointer("/logprobs/top_logprobs/0") {
        Some(Value::Object(top)) => {
            top.values().filter_map(Value::as_f64).map(|x| x as f32).collect()
        }
        _ => Vec::new(),
    };
    logprobs.retain(|x| x.is_finite() && *x <= 1e-3);
    logprobs.sort_unstable_by(|a, b| b.total_cmp(a));
    logprobs.truncate(COMPARED_LOGPROBS);
    Some(Answer { text, logprobs, expected: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::NextToken;

    #[test]
    fn answers_are_read_with_and_without_log_probabilities() {
        let with = json!({"choices": [{"text": " a", "logprobs": {
            "top_logprobs": [{"b": -2.5, " a": -0.5, "c": -9.0}]}}]});
        let read = answer(&with).unwrap();
        assert_eq!(read.text, " a");
        assert_eq!(read.logprobs, [-0.5, -2.5, -9.0]);
        let without = json!({"choices": [{"text": "x", "logprobs": null}]});
        assert!(answer(&without).unwrap().logprobs.is_empty());
        for wrong in [json!({}), json!({"choices": []}), json!([1]), json!({"choices": [{}]})] {
            assert!(answer(&wrong).is_none());
        }
    }

    #[test]
    fn a_text_counts_only_where_noise_could_not_turn_it() {
        let next = |lead: f32| {
            vec![NextToken { id: 1, logprob: -0.5 }, NextToken { id: 2, logprob: -0.5 - lead }]
        };
        let answer = |text: &str, expected: Option<&str>| Answer {
            text: text.to_owned(),
            logprobs: Vec::new(),
            expected: expected.map(str::to_owned),
        };
        assert_eq!(text_differs(&next(1.0), &answer(" b", Some("a")), 0.1), Some(true));
        assert_eq!(text_differs(&next(1.0), &answer(" a", Some("a")), 0.1), Some(false));
        assert_eq!(text_differs(&next(0.1), &answer(" b", Some("a")), 0.1), None);
        assert_eq!(text_differs(&next(1.0), &answer(" b", None), 0.1), None);
        assert_eq!(text_differs(&next(1.0), &answer("", Some("a")), 0.1), None);
    }
}
