//! `const` and `enum`, and what `not` takes from them.

use super::At;
use super::keywords::Kinds;
use super::{number, string};
use crate::error::GrammarError;
use crate::json::Json;

/// The values that `const` and `enum` of the schemas leave; none if they say nothing.
pub(super) fn literals<'a>(schemas: &[At<'a>]) -> Result<Option<Vec<&'a Json>>, GrammarError> {
    let mut left: Option<Vec<&'a Json>> = None;
    for at in schemas {
        let Some(values) = values(at)? else { continue };
        left = Some(match left {
            None => values,
            Some(left) => left
                .into_iter()
                .filter(|literal| values.iter().any(|value| value.equals(literal)))
                .collect(),
        });
    }
    let Some(left) = left else { return Ok(None) };
    let kinds = Kinds::of(schemas)?;
    let names_kinds =
        schemas.iter().any(|at| at.schema.get("type").is_some() || at.schema.get("not").is_some());
    let mut admitted = Vec::new();
    for literal in left {
        let is_kind = !names_kinds || kinds.has(literal);
        if is_kind && !is_excluded(schemas, literal)? && admits(schemas, literal)? {
            admitted.push(literal);
        }
    }
    Ok(Some(admitted))
}

/// The values of `const` and `enum` of one schema.
pub(super) fn values<'a>(at: &At<'a>) -> Result<Option<Vec<&'a Json>>, GrammarError> {
    let listed = match at.inside("enum") {
        None => None,
        Some(list) => match list.schema {
            Json::Array(values) if !values.is_empty() => Some(values.iter().collect::<Vec<_>>()),
            _ => return Err(list.wrong("'enum' must be a list of values")),
        },
    };
    Ok(match (at.schema.get("const"), listed) {
        (Some(one), None) => Some(vec![one]),
        (Some(one), Some(list)) => {
            Some(list.into_iter().filter(|value| value.equals(one)).collect())
        }
        (None, listed) => listed,
    })
}

/// The values that a `not` of the schemas excludes.
pub(super) fn excluded<'a>(schemas: &[At<'a>]) -> Result<Vec<&'a Json>, GrammarError> {
    let mut all = Vec::new();
    for at in schemas {
        if let Some(not) = at.inside("not") {
            all.extend(values(&not)?.unwrap_or_default());
        }
    }
    Ok(all)
}

fn is_excluded(schemas: &[At<'_>], literal: &Json) -> Result<bool, GrammarError> {
    Ok(excluded(schemas)?.iter().any(|value| value.equals(literal)))
}

/// Whether what schemas say beside `enum` admits one of its values.
fn admits(schemas: &[At<'_>], literal: &Json) -> Result<bool, GrammarError> {
    match literal {
        Json::Number(_) => number::admits(schemas, literal),
        Json::String(text) => string::admits(schemas, text),
        Json::Array(_) | Json::Object(_) => {
            let about = [
                "items",
                "prefixItems",
                "minItems",
                "maxItems",
                "uniqueItems",
                "contains",
                "properties",
                "required",
                "additionalProperties",
                "patternProperties",
                "propertyNames",
                "minProperties",
                "maxProperties",
                "unevaluatedProperties",
            ];
            for at in schemas {
                if let Some(key) = about.iter().find(|key| at.schema.get(key).is_some()) {
                    let problem = format!("'{key}' beside 'enum' or 'const' is not supported");
                    return Err(at.wrong(problem));
                }
            }
            Ok(true)
        }
        Json::Null | Json::Bool(_) => Ok(true),
    }
}
