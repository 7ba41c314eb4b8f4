//! The parameters that completions and chats share: number of tokens, sampling, stop texts, and whether
//! the answer is streamed.

use std::ops::RangeInclusive;

use serde_json::Value;
use surefoot_models::generate::sample::Sampling;

use super::error::ApiError;
use super::fields::{Fields, mistyped};
use crate::engine::LogitRules;

/// The most choices for one prompt.
const MAX_CHOICES: usize = 128;
/// The most stop texts; OpenAI takes four.
const MAX_STOPS: usize = 16;

/// How answers are generated.
#[derive(Clone, Debug)]
pub(super) struct GenerationParameters {
    pub(super) choices: usize,
    pub(super) sampling: Sampling,
    pub(super) rules: LogitRules,
    pub(super) stops: Vec<String>,
    pub(super) max_tokens: Option<usize>,
    pub(super) stream: bool,
    pub(super) usage_in_stream: bool,
}

impl GenerationParameters {
    /// Takes the common fields. `limits` are the names of the field that says how many tokens; `seed` is that of a request
    /// that gives none.
    pub(super) fn take(
        fields: &mut Fields<'_>,
        limits: &[&str],
        tokens: RangeInclusive<usize>,
        seed: u64,
    ) -> Result<Self, ApiError> {
        let mut max_tokens = None;
        for name in limits {
            max_tokens = fields.count(name, tokens.clone())?.or(max_tokens);
        }
        let stream = fields.flag("stream")?;
        Ok(Self {
            choices: fields.count("n", 1..=MAX_CHOICES)?.unwrap_or(1),
            sampling: sampling(fields, seed)?,
            rules: rules(fields)?,
            stops: stops(fields)?,
            max_tokens,
            stream,
            usage_in_stream: usage_in_stream(fields, stream)?,
        })
    }

    /// The sampling of one choice: each has random numbers of its own.
    pub(super) fn sampling_of(&self, choice: usize) -> Sampling {
        let seed = self.sampling.seed.wrapping_add(choice as u64);
        Sampling { seed, ..self.sampling }
    }
}

fn sampling(fields: &mut Fields<'_>, seed: u64) -> Result<Sampling, ApiError> {
    let temperature = fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0) as f32;
    let top_p = fields.number("top_p", 0.0..=1.0)?.filter(|p| *p < 1.0).map(|p| p as f32);
    // As in vLLM: 0 and -1 take all tokens.
    let top_k = fields.count_unless("top_k", &[0, -1], 1..=1 << 24)?;
    let seed = match fields.take("seed")? {
        None => seed,
        Some(seed) => match (seed.as_u64(), seed.as_i64()) {
            (Some(seed), _) => seed,
            (None, Some(seed)) => seed.cast_unsigned(),
            (None, None) => return Err(mistyped("seed", "a whole number")),
        },
    };
    Ok(Sampling { temperature, top_k, top_p, seed })
}

fn rules(fields: &mut Fields<'_>) -> Result<LogitRules, ApiError> {
    let usual = LogitRules::default();
    let penalty = |fields: &mut Fields<'_>, key| {
        fields.number(key, -2.0..=2.0).map(|penalty| penalty.unwrap_or(0.0) as f32)
    };
    Ok(LogitRules {
        frequency_penalty: penalty(fields, "frequency_penalty")?,
        presence_penalty: penalty(fields, "presence_penalty")?,
        repetition_penalty: fields
            .number("repetition_penalty", 0.01..=10.0)?
            .map_or(usual.repetition_penalty, |penalty| penalty as f32),
        bias: bias(fields)?,
        min_p: fields.number("min_p", 0.0..=1.0)?.map_or(usual.min_p, |share| share as f32),
    })
}

/// Token ids, as texts, to what is added to their logits.
fn bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    const EXPECTED: &str = "an object of token ids with numbers from -100 to 100";
    let Some(value) = fields.take("logit_bias")? else { return Ok(Vec::new()) };
    let Value::Object(map) = value else { return Err(mistyped("logit_bias", EXPECTED)) };
    map.into_iter()
        .map(|(id, bias)| {
            let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            match (id.parse(), bias) {
                (Ok(id), Some(bias)) => Ok((id, bias as f32)),
                _ => Err(mistyped("logit_bias", EXPECTED)),
            }
        })
        .collect()
}

fn stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop")? {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(stops)) => stops
            .into_iter()
            .map(|stop| match stop {
                Value::String(stop) => Ok(stop),
                _ => Err(mistyped("stop", "a text or a list of texts")),
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(mistyped("stop", "a text or a list of texts")),
    };
    if stops.len() > MAX_STOPS {
        let message = format!("'stop' has {} texts; it can have {MAX_STOPS}", stops.len());
        return Err(ApiError::invalid(message).param("stop"));
    }
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

fn usage_in_stream(fields: &mut Fields<'_>, stream: bool) -> Result<bool, ApiError> {
    match fields.take("stream_options")? {
        None => Ok(false),
        Some(_) if !stream => {
            let message = "'stream_options' means something only with 'stream': true";
            Err(ApiError::invalid(message).param("stream_options"))
        }
        Some(Value::Object(options)) => match options.get("include_usage") {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(usage)) => Ok(*usage),
            Some(_) => Err(mistyped("stream_options.include_usage", "true or false")),
        },
        Some(_) => Err(mistyped("stream_options", "an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn taken(value: Value) -> Result<GenerationParameters, ApiError> {
        let text = value.to_string();
        let mut fields = Fields::of(&text);
        let answering = GenerationParameters::take(
            &mut fields,
            &["max_tokens", "max_completion_tokens"],
            1..=50,
            77,
        )?;
        fields.finish()?;
        Ok(answering)
    }

    #[test]
    fn defaults_are_openais() {
        let plain = taken(json!({})).unwrap();
        assert_eq!((plain.choices, plain.stream, plain.usage_in_stream), (1, false, false));
        assert_eq!((plain.sampling.temperature, plain.sampling.top_p), (1.0, None));
        assert_eq!(plain.sampling.seed, 77);
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        let asked = taken(json!({
            "n": 3, "temperature": 0, "top_p": 0.5, "top_k": 9, "seed": -1, "stop": ["a", "", "b"],
            "max_tokens": 5, "max_completion_tokens": 7, "stream": true,
            "stream_options": {"include_usage": true}, "presence_penalty": 0, "logit_bias": {},
        }))
        .unwrap();
        assert!(asked.rules.is_empty());
        let rules = taken(json!({
            "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.25,
            "min_p": 0.1, "logit_bias": {"5": -100, "7": 1.5},
        }))
        .unwrap()
        .rules;
        assert_eq!((rules.presence_penalty, rules.frequency_penalty), (0.5, -1.0));
        assert_eq!((rules.repetition_penalty, rules.min_p), (1.25, 0.1));
        assert_eq!(rules.bias, [(5, -100.0), (7, 1.5)]);
        assert_eq!(asked.stops, ["a", "b"]);
        assert_eq!((asked.choices, asked.max_tokens, asked.usage_in_stream), (3, Some(7), true));
        assert_eq!(asked.sampling.seed, u64::MAX);
        assert_eq!(asked.sampling_of(1).seed, 0);
        assert_eq!((asked.sampling.top_k, asked.sampling.top_p), (Some(9), Some(0.5)));
    }

    #[test]
    fn all_tokens_can_be_asked_for() {
        for off in [0, -1] {
            assert_eq!(taken(json!({ "top_k": off })).unwrap().sampling.top_k, None);
        }
    }

    #[test]
    fn what_can_not_be_is_refused_with_the_name_of_the_field() {
        for (value, param) in [
            (json!({"top_k": -2}), "top_k"),
            (json!({"top_k": 0.5}), "top_k"),
            (json!({"temperature": 3}), "temperature"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"top_p": -0.1}), "top_p"),
            (json!({"n": 0}), "n"),
            (json!({"max_tokens": 51}), "max_tokens"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"stop": 7}), "stop"),
            (json!({"stop": vec!["x"; 17]}), "stop"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"frequency_penalty": 2.5}), "frequency_penalty"),
            (json!({"presence_penalty": "much"}), "presence_penalty"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"min_p": 1.5}), "min_p"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias"),
            (json!({"logit_bias": {"five": 1}}), "logit_bias"),
            (json!({"logit_bias": [5]}), "logit_bias"),
        ] {
            let error = taken(value.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{value}");
        }
    }
}
