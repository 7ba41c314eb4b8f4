//! Objects by their properties, in the order of the schemas.

use std::collections::BTreeMap;

use derivre::RegexAst;

use super::{All, At, Writer, string};
use crate::error::GrammarError;
use crate::grammar::Symbol;
use crate::json::{Json, quoted};

/// The most properties that a schema can count, and name.
const MAX_COUNT: u32 = 200;
const MAX_PROPERTIES: usize = 2_000;

/// What all schemas say about the properties of an object.
struct Properties<'a> {
    /// Those that are named, with their schemas and whether they have to be there.
    named: Vec<(&'a str, Vec<At<'a>>, bool)>,
    /// Other properties: regular expressions of their names in quotes, with their schemas.
    others: Vec<(RegexAst, Vec<At<'a>>)>,
    least: u32,
    most: Option<u32>,
}

impl<'a> Writer<'a> {
    /// The objects that all schemas admit.
    pub(super) fn object(&mut self, schemas: &[At<'a>]) -> Result<Symbol, GrammarError> {
        let properties = properties(schemas)?;
        let (open, comma, colon) = (self.sign('{'), self.sign(','), self.colon());
        let close = self.closing('}');
        let mut named = Vec::new();
        for (name, schemas, is_required) in &properties.named {
            let key = self.grammar.literal(&quoted(name));
            let value = self.value(All::of(schemas.clone()))?;
            named.push((key, value, *is_required));
        }
        let mut others = Vec::new();
        for (key, schemas) in properties.others {
            let key = self.grammar.terminal(key);
            others.push((key, self.value(All::of(schemas))?));
        }
        // What comes behind the first so many named properties, of which so many are there. Counts
        // that make no difference are one.
        let counted = properties.least.max(properties.most.map_or(0, |most| most + 1)).max(1);
        let mut rests: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        let mut waiting = vec![(0, 0)];
        let first = self.grammar.rule("properties");
        rests.insert((0, 0), first);
        while let Some((at, count)) = waiting.pop() {
            let rule = rests[&(at, count)];
            let mut next = |writer: &mut Self, at: usize, count: u32| {
                let key = (at, count.min(counted));
                *rests.entry(key).or_insert_with(|| {
                    waiting.push(key);
                    writer.grammar.rule("properties")
                })
            };
            let has_room = properties.most.is_none_or(|most| count < most);
            let separator: &[Symbol] = if count > 0 { &[comma] } else { &[] };
            match named.get(at) {
                Some(&(key, value, is_required)) => {
                    if has_room {
                        let rest = next(self, at + 1, count + 1);
                        let mut symbols = separator.to_vec();
                        symbols.extend([key, colon, value, Symbol::Rule(rest)]);
                        self.grammar.add(rule, symbols)?;
                    }
                    if !is_required {
                        let rest = next(self, at + 1, count);
                        self.grammar.add(rule, vec![Symbol::Rule(rest)])?;
                    }
                }
                None => {
                    if count >= properties.least {
                        self.grammar.add(rule, vec![close])?;
                    }
                    for &(key, value) in others.iter().filter(|_| has_room) {
                        let rest = next(self, at, count + 1);
                        let mut symbols = separator.to_vec();
                        symbols.extend([key, colon, value, Symbol::Rule(rest)]);
                        self.grammar.add(rule, symbols)?;
                    }
                }
            }
        }
        let rule = self.grammar.rule("object");
        self.grammar.add(rule, vec![open, Symbol::Rule(first)])?;
        Ok(Symbol::Rule(rule))
    }

    fn colon(&mut self) -> Symbol {
        self.grammar.terminal(RegexAst::Regex(": ?".to_owned()))
    }
}

/// The names that schemas require.
pub(super) fn required<'a>(schemas: &[At<'a>]) -> Result<Vec<&'a str>, GrammarError> {
    let mut names = Vec::new();
    for at in schemas {
        let Some(list) = at.inside("required") else { continue };
        match list.schema {
            // Before draft 4 it was a flag of a property.
            Json::Bool(_) => {}
            Json::Array(required) => {
                for name in required {
                    let Some(name) = name.as_str() else {
                        return Err(list.wrong("'required' must be a list of texts"));
                    };
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
            _ => return Err(list.wrong("'required' must be a list of texts")),
        }
    }
    Ok(names)
}

fn fields<'a>(at: &At<'a>, key: &str) -> Result<Vec<(&'a str, At<'a>)>, GrammarError> {
    let Some(part) = at.inside(key) else { return Ok(Vec::new()) };
    let Json::Object(fields) = part.schema else {
        return Err(part.wrong(format!("'{key}' must be an object")));
    };
    Ok(fields
        .iter()
        .map(|(name, schema)| (name.as_str(), At { schema, path: super::child(&part.path, name) }))
        .collect())
}

fn properties<'a>(schemas: &[At<'a>]) -> Result<Properties<'a>, GrammarError> {
    let (mut least, mut most) = (0_u32, None);
    for at in schemas {
        least = least.max(string::count(at, "minProperties", MAX_COUNT)?.unwrap_or(0));
        let limit = string::count(at, "maxProperties", MAX_COUNT)?;
        most = most.into_iter().chain(limit).min();
    }
    // Per schema: what it names, its patterns, and what it says of others.
    let mut named_by = Vec::new();
    let mut patterns_by = Vec::new();
    let mut names: Vec<&'a str> = Vec::new();
    for at in schemas {
        let named = fields(at, "properties")?;
        for (name, _) in &named {
            if !names.contains(name) {
                names.push(name);
            }
        }
        named_by.push(named);
        let mut patterns = Vec::new();
        for (pattern, schema) in fields(at, "patternProperties")? {
            patterns.push((string::searched(&schema, pattern)?, schema));
        }
        patterns_by.push(patterns);
    }
    let required = required(schemas)?;
    for name in &required {
        if !names.contains(name) {
            names.push(name);
        }
    }
    if names.len() > MAX_PROPERTIES {
        let problem = format!("an object can have {MAX_PROPERTIES} properties at most");
        return Err(schemas[0].wrong(problem));
    }
    let is_closed = schemas
        .iter()
        .any(|at| matches!(at.schema.get("unevaluatedProperties"), Some(Json::Bool(false))));
    let nothing = |at: &At<'a>| At {
        schema: &Json::Bool(false),
        path: format!("{}/unevaluatedProperties", at.path),
    };
    let mut named = Vec::new();
    for &name in &names {
        let mut all = Vec::new();
        let mut is_evaluated = false;
        for (number, at) in schemas.iter().enumerate() {
            let mut is_known = false;
            if let Some((_, schema)) = named_by[number].iter().rev().find(|(own, _)| *own == name) {
                all.push(schema.clone());
                is_known = true;
            }
            for (pattern, schema) in &patterns_by[number] {
                if string::matches(pattern, name)? {
                    all.push(schema.clone());
                    is_known = true;
                }
            }
            if !is_known && let Some(additional) = at.inside("additionalProperties") {
                all.push(additional);
                is_known = true;
            }
            is_evaluated |= is_known;
            if let Some(rule) = at.inside("propertyNames")
                && !string::admits(std::slice::from_ref(&rule), name)?
            {
                all.push(nothing(at));
            }
        }
        if is_closed && !is_evaluated {
            all.push(nothing(&schemas[0]));
        }
        named.push((name, all, required.contains(&name)));
    }
    let others = others(schemas, &names, &patterns_by, is_closed)?;
    let optional_names = named.len() as u32;
    if !others.is_empty() && least > optional_names + 1 {
        let problem = "'minProperties' asks for more properties than are named: names that are not \
                       given might repeat";
        return Err(schemas[0].wrong(problem));
    }
    Ok(Properties { named, others, least, most })
}

/// Names that are not given, with the schemas of their values. A name that several patterns match is
/// left out.
fn others<'a>(
    schemas: &[At<'a>],
    names: &[&'a str],
    patterns_by: &[Vec<(RegexAst, At<'a>)>],
    is_closed: bool,
) -> Result<Vec<(RegexAst, Vec<At<'a>>)>, GrammarError> {
    let not = |regex: RegexAst| RegexAst::Not(Box::new(regex));
    let mut common = Vec::new();
    if !names.is_empty() {
        let names = names.iter().map(|name| RegexAst::Literal((*name).to_owned()));
        common.push(not(RegexAst::Or(names.collect())));
    }
    for at in schemas {
        if let Some(rule) = at.inside("propertyNames") {
            match rule.schema {
                Json::Bool(true) => {}
                Json::Bool(false) => return Ok(Vec::new()),
                _ => {
                    let known =
                        ["pattern", "minLength", "maxLength", "format", "type", "enum", "const"];
                    if let Json::Object(fields) = rule.schema
                        && let Some((key, _)) =
                            fields.iter().find(|(key, _)| !known.contains(&key.as_str()))
                    {
                        return Err(
                            rule.wrong(format!("'{key}' in 'propertyNames' is not supported"))
                        );
                    }
                    if let Some(values) = super::literal::values(&rule)? {
                        let texts = values.iter().filter_map(|value| value.as_str());
                        common.push(RegexAst::Or(
                            texts.map(|t| RegexAst::Literal(t.to_owned())).collect(),
                        ));
                    }
                    common.extend(string::parts_of(&rule)?);
                }
            }
        }
    }
    let additional = |skip: Option<usize>| -> Vec<At<'a>> {
        let all = schemas.iter().enumerate().filter(|(number, _)| Some(*number) != skip);
        all.filter_map(|(_, at)| at.inside("additionalProperties")).collect()
    };
    let all_patterns: Vec<&RegexAst> =
        patterns_by.iter().flatten().map(|(pattern, _)| pattern).collect();
    let mut others = Vec::new();
    let mut place = 0;
    for (number, patterns) in patterns_by.iter().enumerate() {
        for (pattern, schema) in patterns {
            let mut parts = common.clone();
            parts.push(pattern.clone());
            for (other, regex) in all_patterns.iter().enumerate() {
                if other != place {
                    parts.push(not((*regex).clone()));
                }
            }
            place += 1;
            let mut values = vec![schema.clone()];
            values.extend(additional(Some(number)));
            others.push((string::all_in_quotes(parts), values));
        }
    }
    let forbids =
        |at: &At<'_>| matches!(at.schema.get("additionalProperties"), Some(Json::Bool(false)));
    let evaluated = schemas.iter().any(|at| at.schema.get("additionalProperties").is_some());
    if !schemas.iter().any(forbids) && (evaluated || !is_closed) {
        let mut parts = common;
        parts.extend(all_patterns.into_iter().map(|regex| not(regex.clone())));
        let key = match parts.is_empty() {
            true => string::regex(&[])?,
            false => string::all_in_quotes(parts),
        };
        others.push((key, additional(None)));
    }
    Ok(others)
}
