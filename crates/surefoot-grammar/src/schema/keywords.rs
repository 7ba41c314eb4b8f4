//! What schemas say about kinds of values, and which keywords can't be a constraint.

use super::At;
use crate::error::GrammarError;
use crate::json::Json;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    /// All kinds; every integer is a number.
    pub(super) const ALL: [Self; 6] =
        [Self::Object, Self::Array, Self::String, Self::Number, Self::Boolean, Self::Null];

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "string" => Self::String,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }
}

/// Keywords that say something about one kind of value.
const ABOUT: [(Kind, &[&str]); 4] = [
    (Kind::Number, &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    (Kind::String, &["minLength", "maxLength", "pattern", "format"]),
    (
        Kind::Array,
        &[
            "items",
            "prefixItems",
            "additionalItems",
            "minItems",
            "maxItems",
            "uniqueItems",
            "contains",
        ],
    ),
    (
        Kind::Object,
        &[
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
            "unevaluatedProperties",
        ],
    ),
];

/// Keywords that say something and can't be made a constraint.
const REFUSED: [&str; 11] = [
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "contentSchema",
    "minContains",
];

/// Refuses keywords that can't be made a constraint, rather than giving texts that they don't admit.
pub(super) fn check(at: &At<'_>) -> Result<(), GrammarError> {
    match REFUSED.into_iter().find(|key| at.schema.get(key).is_some()) {
        Some(key) => Err(at.wrong(format!("'{key}' is not supported"))),
        None => Ok(()),
    }
}

/// Whether a schema says more than what its `allOf` and `$ref` do.
pub(super) fn says_something(schema: &Json) -> bool {
    let own = ["type", "enum", "const", "not", "anyOf", "oneOf"];
    let mut keys = own.iter().chain(ABOUT.iter().flat_map(|(_, keys)| keys.iter()));
    keys.any(|key| schema.get(key).is_some())
}

/// Some kinds of values.
#[derive(Clone, Debug)]
pub(super) struct Kinds(Vec<Kind>);

impl Kinds {
    /// The kinds of the values that all schemas admit. If no schema names kinds, they are those that
    /// the schemas say something about.
    pub(super) fn of(schemas: &[At<'_>]) -> Result<Self, GrammarError> {
        let mut kinds = Kind::ALL.to_vec();
        let mut are_named = false;
        for at in schemas {
            if let Some(named) = named(at)? {
                are_named = true;
                kinds = common(&kinds, &named);
            }
            if let Some(not) = at.inside("not") {
                // Other parts of `not` are seen to where literals and texts are.
                if let Some(excluded) = excluded_kinds(&not)? {
                    are_named = true;
                    kinds.retain(|kind| !excluded.contains(kind));
                }
            }
        }
        if !are_named {
            let said = |kind: &Kind| {
                let about = ABOUT.iter().find(|(about, _)| about == kind);
                let keys = about.map_or(&[][..], |(_, keys)| keys);
                keys.iter().any(|key| schemas.iter().any(|at| at.schema.get(key).is_some()))
            };
            if kinds.iter().any(said) {
                kinds.retain(said);
            }
        }
        Ok(Self(kinds))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Kind> {
        self.0.iter().copied()
    }

    pub(super) fn has(&self, literal: &Json) -> bool {
        self.0.iter().any(|kind| is_of(literal, *kind))
    }

    pub(super) fn is_disjoint(&self, other: &Self) -> bool {
        common(&self.0, &other.0).is_empty()
    }
}

pub(super) fn is_of(literal: &Json, kind: Kind) -> bool {
    match (literal, kind) {
        (Json::Null, Kind::Null)
        | (Json::Bool(_), Kind::Boolean)
        | (Json::Number(_), Kind::Number)
        | (Json::String(_), Kind::String)
        | (Json::Array(_), Kind::Array)
        | (Json::Object(_), Kind::Object) => true,
        (Json::Number(number), Kind::Integer) => {
            number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => false,
    }
}

fn common(a: &[Kind], b: &[Kind]) -> Vec<Kind> {
    let mut both = Vec::new();
    for &kind in a {
        let other = match kind {
            Kind::Integer if b.contains(&Kind::Number) || b.contains(&Kind::Integer) => kind,
            Kind::Number if b.contains(&Kind::Number) => kind,
            Kind::Number if b.contains(&Kind::Integer) => Kind::Integer,
            kind if b.contains(&kind) => kind,
            _ => continue,
        };
        both.push(other);
    }
    both
}

fn named(at: &At<'_>) -> Result<Option<Vec<Kind>>, GrammarError> {
    let Some(types) = at.inside("type") else { return Ok(None) };
    let one = |name: &Json| {
        name.as_str().and_then(Kind::named).ok_or_else(|| {
            types.wrong(format!(
                "{} is no type; null, boolean, integer, number, string, array and object are",
                name.text()
            ))
        })
    };
    Ok(Some(match types.schema {
        Json::Array(names) => {
            let mut kinds: Vec<Kind> = names.iter().map(one).collect::<Result<_, _>>()?;
            if kinds.contains(&Kind::Number) {
                kinds.retain(|kind| *kind != Kind::Integer);
            }
            kinds
        }
        name => vec![one(name)?],
    }))
}

/// The kinds that a `not` excludes, if that is all it says; none if it excludes values instead.
fn excluded_kinds(not: &At<'_>) -> Result<Option<Vec<Kind>>, GrammarError> {
    match not.schema {
        Json::Bool(true) => return Ok(Some(Kind::ALL.to_vec())),
        Json::Bool(false) => return Ok(None),
        Json::Object(fields) => {
            let keys: Vec<&str> = fields.iter().map(|(key, _)| key.as_str()).collect();
            match keys.as_slice() {
                [] => return Ok(Some(Kind::ALL.to_vec())),
                ["type"] => {
                    let kinds = named(not)?.unwrap_or_default();
                    if kinds.contains(&Kind::Integer) {
                        return Err(not.wrong("'not' with the type integer is not supported"));
                    }
                    return Ok(Some(kinds));
                }
                ["const"] | ["enum"] => return Ok(None),
                _ => {}
            }
        }
        _ => {}
    }
    Err(not.wrong("'not' is supported with 'type', 'const' or 'enum' alone"))
}
