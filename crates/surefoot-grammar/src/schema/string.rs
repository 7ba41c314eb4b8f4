//! Texts by their length, pattern and format.

use derivre::{RegexAst, RegexBuilder};

use super::{At, any_text, in_quotes, literal};
use crate::error::GrammarError;
use crate::json::Json;
use crate::pattern::ascii_classes;

/// The longest `minLength` and `maxLength`.
const MAX_LENGTH: u32 = 100_000;

/// Texts that `serde_json` and others read: no lone surrogates.
const ANY: &str = concat!(
    r#""([^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|"#,
    r#"\\u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*""#
);

/// The JSON strings that all schemas admit.
pub(super) fn regex(schemas: &[At<'_>]) -> Result<RegexAst, GrammarError> {
    let mut parts = parts(schemas)?;
    for value in literal::excluded(schemas)? {
        if let Json::String(text) = value {
            parts.push(RegexAst::Not(Box::new(RegexAst::Literal(text.clone()))));
        }
    }
    if parts.is_empty() {
        return Ok(RegexAst::Regex(ANY.to_owned()));
    }
    Ok(all_in_quotes(parts))
}

/// The JSON strings whose texts all of `parts` match. A complement inside of quotes would have
/// anything, so that all are intersected with what is a JSON string.
pub(super) fn all_in_quotes(parts: Vec<RegexAst>) -> RegexAst {
    let mut quoted = vec![in_quotes(any_text())];
    for part in parts {
        quoted.push(match part {
            RegexAst::Not(inner) => RegexAst::Not(Box::new(in_quotes(*inner))),
            other => in_quotes(other),
        });
    }
    RegexAst::And(quoted)
}

/// What the schemas ask of a text, without its quotes.
fn parts(schemas: &[At<'_>]) -> Result<Vec<RegexAst>, GrammarError> {
    let mut parts = Vec::new();
    let (mut least, mut most) = (0, u32::MAX);
    for at in schemas {
        least = least.max(count(at, "minLength", MAX_LENGTH)?.unwrap_or(0));
        most = most.min(count(at, "maxLength", MAX_LENGTH)?.unwrap_or(u32::MAX));
        if let Some(pattern) = at.inside("pattern") {
            let Some(text) = pattern.schema.as_str() else {
                return Err(pattern.wrong("'pattern' must be a text"));
            };
            parts.push(searched(&pattern, text)?);
        }
        if let Some(format) = at.inside("format")
            && let Some(regex) = format.schema.as_str().and_then(format_regex)
        {
            parts.push(RegexAst::Regex(regex.to_owned()));
        }
    }
    if least > most {
        parts.push(RegexAst::NoMatch);
    } else if (least, most) != (0, u32::MAX) {
        let any = RegexAst::Regex("(?s:.)".to_owned());
        parts.push(RegexAst::Repeat(Box::new(any), least, most));
    }
    Ok(parts)
}

/// What one schema asks of a text.
pub(super) fn parts_of(at: &At<'_>) -> Result<Vec<RegexAst>, GrammarError> {
    parts(std::slice::from_ref(at))
}

/// A pattern, which has to be found somewhere in the text.
pub(super) fn searched(at: &At<'_>, pattern: &str) -> Result<RegexAst, GrammarError> {
    let regex = RegexAst::SearchRegex(ascii_classes(pattern));
    match RegexBuilder::new().mk(&regex) {
        Ok(_) => Ok(regex),
        Err(error) => Err(at.wrong(format!("the pattern {pattern:?} can't be used: {error}"))),
    }
}

/// A count that a schema gives, up to `most`; a larger one is as good as none.
pub(super) fn count(at: &At<'_>, key: &str, most: u32) -> Result<Option<u32>, GrammarError> {
    let Some(part) = at.inside(key) else { return Ok(None) };
    let Json::Number(number) = part.schema else {
        return Err(part.wrong(format!("'{key}' must be a whole number")));
    };
    let number = number.as_f64().filter(|number| *number >= 0.0 && number.fract() == 0.0);
    match number {
        None => Err(part.wrong(format!("'{key}' must be a whole number"))),
        Some(number) if number <= f64::from(most) => Ok(Some(number as u32)),
        Some(_) if key.starts_with("max") => Ok(None),
        Some(_) => Err(part.wrong(format!("'{key}' can be {most} at most"))),
    }
}

/// Whether a text that `enum` names is admitted by all schemas.
pub(super) fn admits(schemas: &[At<'_>], text: &str) -> Result<bool, GrammarError> {
    let parts = parts(schemas)?;
    if parts.is_empty() {
        return Ok(true);
    }
    matches(&RegexAst::And(parts), text)
}

/// Whether a regular expression matches a whole text.
pub(super) fn matches(regex: &RegexAst, text: &str) -> Result<bool, GrammarError> {
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(regex).map_err(|error| GrammarError::Regex(error.to_string()))?;
    Ok(builder.into_regex(expression).is_match(text))
}

/// Texts of a format; not all that the standards admit, but nothing that they don't. None for formats
/// that are not known, which admit everything.
fn format_regex(format: &str) -> Option<&'static str> {
    Some(match format {
        // February has 28 days: a regular expression that knows leap years is long.
        "date" => DATE,
        "time" => TIME,
        "date-time" => {
            r"[0-9]{4}-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))|(02-(0[1-9]|1[0-9]|2[0-8])))T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
        }
        "duration" => {
            r"P([0-9]{1,4}W|([0-9]{1,4}Y)?[0-9]{1,4}M([0-9]{1,4}D)?|[0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}H([0-9]{1,4}M)?)"
        }
        "email" => {
            r"[A-Za-z0-9]([A-Za-z0-9_+-]{0,30}[A-Za-z0-9])?(\.[A-Za-z0-9]{1,20})?@[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?(\.[A-Za-z]{2,10}){1,2}"
        }
        "hostname" => r"[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?(\.[A-Za-z]{2,10}){0,3}",
        "ipv4" => {
            r"((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
        }
        "ipv6" => {
            r"([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::([0-9a-fA-F]{1,4}:){0,5}[0-9a-fA-F]{1,4}|::1?"
        }
        "uuid" => r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
        "uri" | "iri" => {
            r"(https?|ftp)://[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?(\.[A-Za-z]{2,10}){0,3}(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,60}){0,8}(\?[A-Za-z0-9._~=&-]{0,60})?"
        }
        "uri-reference" | "iri-reference" => {
            r"(/[A-Za-z0-9._~-]{1,60}){1,8}(\?[A-Za-z0-9._~=&-]{0,60})?"
        }
        "json-pointer" => r"(/[A-Za-z0-9._-]{0,60}){0,8}",
        _ => return None,
    })
}

const DATE: &str = r"[0-9]{4}-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))|(02-(0[1-9]|1[0-9]|2[0-8])))";
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
