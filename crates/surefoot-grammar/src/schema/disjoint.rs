//! Whether the branches of a `oneOf` exclude each other: a value that satisfies two of them is not
//! admitted, and a grammar can't count.

use super::keywords::Kinds;
use super::{All, At, Writer, literal};
use crate::error::GrammarError;
use crate::json::Json;

/// How deep properties are compared.
const DEPTH: usize = 3;

impl<'a> Writer<'a> {
    pub(super) fn check_exclusive(
        &self,
        at: &At<'a>,
        branches: &[At<'a>],
    ) -> Result<(), GrammarError> {
        for (number, one) in branches.iter().enumerate() {
            for (other_number, other) in branches.iter().enumerate().skip(number + 1) {
                if !self.are_disjoint(one, other, DEPTH)? {
                    return Err(at.wrong(format!(
                        "branches {number} and {other_number} of 'oneOf' don't obviously exclude \
                         each other; 'anyOf' allows that, or give a required property of both \
                         different constants"
                    )));
                }
            }
        }
        Ok(())
    }

    fn are_disjoint(
        &self,
        one: &At<'a>,
        other: &At<'a>,
        depth: usize,
    ) -> Result<bool, GrammarError> {
        let flat = |at: &At<'a>| self.flattened(All::of(vec![at.clone()]));
        let (Some(a), Some(b)) = (flat(one)?, flat(other)?) else { return Ok(true) };
        let (a, b) = (a.schemas, b.schemas);
        let is_typed =
            |schemas: &[At<'_>]| schemas.iter().any(|at| at.schema.get("type").is_some());
        let (a_values, b_values) = (literal::literals(&a)?, literal::literals(&b)?);
        match (&a_values, &b_values) {
            (Some(a), Some(b)) => {
                return Ok(!a.iter().any(|value| b.iter().any(|other| other.equals(value))));
            }
            (Some(values), None) if is_typed(&b) => {
                let kinds = Kinds::of(&b)?;
                if !values.iter().any(|value| kinds.has(value)) {
                    return Ok(true);
                }
            }
            (None, Some(values)) if is_typed(&a) => {
                let kinds = Kinds::of(&a)?;
                if !values.iter().any(|value| kinds.has(value)) {
                    return Ok(true);
                }
            }
            _ => {}
        }
        if is_typed(&a) && is_typed(&b) {
            let (a_kinds, b_kinds) = (Kinds::of(&a)?, Kinds::of(&b)?);
            if a_kinds.is_disjoint(&b_kinds) {
                return Ok(true);
            }
            let only_objects = |kinds: &Kinds| kinds.iter().all(|k| k == super::Kind::Object);
            if depth > 0 && only_objects(&a_kinds) && only_objects(&b_kinds) {
                return Ok(
                    self.objects_differ(&a, &b, depth)? || self.objects_differ(&b, &a, depth)?
                );
            }
        }
        Ok(false)
    }

    /// Whether something that `a` requires is not admitted by `b`.
    fn objects_differ(
        &self,
        a: &[At<'a>],
        b: &[At<'a>],
        depth: usize,
    ) -> Result<bool, GrammarError> {
        for name in super::object::required(a)? {
            let property = |schemas: &[At<'a>]| {
                schemas.iter().find_map(|at| at.inside("properties")?.inside(name))
            };
            match (property(a), property(b)) {
                (Some(one), Some(other)) => {
                    if self.are_disjoint(&one, &other, depth - 1)? {
                        return Ok(true);
                    }
                }
                (_, None) => {
                    let forbids = |at: &At<'a>| {
                        matches!(at.schema.get("additionalProperties"), Some(Json::Bool(false)))
                            && at.schema.get("patternProperties").is_none()
                    };
                    if b.iter().any(forbids) {
                        return Ok(true);
                    }
                }
                (None, Some(_)) => {}
            }
        }
        Ok(false)
    }
}
