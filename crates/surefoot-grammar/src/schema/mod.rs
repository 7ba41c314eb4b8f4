//! JSON schemas as grammars.
//!
//! A value has to satisfy a list of schemas at once ([`All`]): `allOf` and `$ref` add to the list, and
//! `anyOf` and `oneOf` make a list for each of their branches. What the schemas of a list say about each
//! kind of value is then combined: [`number`], [`string`], [`array`], [`object`]. Lists are known by the JSON
//! pointers of their schemas, so that a schema that refers to itself becomes a rule that does.
//!
//! Every text of the grammar is admitted by the schema. Where a grammar can't say what the schema says,
//! either some texts that would be admitted are left out (the order of properties is that of the
//! schema, numbers have at most 15 digits before and 16 behind the point), or the schema is refused.

mod array;
mod disjoint;
mod keywords;
mod literal;
mod number;
mod object;
mod string;

use std::collections::{BTreeSet, HashMap};

use derivre::{JsonQuoteOptions, RegexAst};

use crate::error::GrammarError;
use crate::grammar::{Grammar, Symbol};
use crate::json::Json;
use keywords::{Kind, Kinds};

/// The most schemas that one value has to satisfy.
const MAX_AT_ONCE: usize = 200;
/// The most different lists of schemas.
const MAX_LISTS: usize = 10_000;
/// The deepest nesting of schemas that are being translated.
const MAX_DEPTH: usize = 200;

/// Space that may be between the parts of an object or a list.
const SPACE: &str = r"( |\n[ \t]{0,20})?";

/// A schema, and where it is.
#[derive(Clone, Debug)]
struct At<'a> {
    schema: &'a Json,
    path: String,
}

impl<'a> At<'a> {
    fn inside(&self, key: &str) -> Option<Self> {
        Some(Self { schema: self.schema.get(key)?, path: child(&self.path, key) })
    }

    fn wrong(&self, problem: impl Into<String>) -> GrammarError {
        GrammarError::Schema { path: self.path.clone(), problem: problem.into() }
    }
}

/// The JSON pointer of a part.
fn child(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Schemas that a value has to satisfy at once, and the choices between branches that were made.
#[derive(Clone, Debug, Default)]
struct All<'a> {
    schemas: Vec<At<'a>>,
    /// The JSON pointers of `anyOf` and `oneOf` of which a branch is among the schemas.
    chosen: BTreeSet<String>,
}

impl<'a> All<'a> {
    fn of(schemas: Vec<At<'a>>) -> Self {
        Self { schemas, chosen: BTreeSet::new() }
    }

    fn key(&self) -> String {
        let mut paths: BTreeSet<&str> = self.schemas.iter().map(|at| at.path.as_str()).collect();
        paths.extend(self.chosen.iter().map(String::as_str));
        paths.into_iter().collect::<Vec<_>>().join("\n")
    }
}

/// The grammar of the texts that a schema admits.
pub(crate) fn grammar(text: &str) -> Result<Grammar, GrammarError> {
    let mut grammar = Grammar::default();
    let start = grammar.rule("root");
    let value = write(&mut grammar, text, &[])?;
    grammar.add(start, vec![value])?;
    Ok(grammar)
}

/// The objects that a schema admits, as a symbol of a grammar.
pub(crate) fn object(grammar: &mut Grammar, text: &str) -> Result<Symbol, GrammarError> {
    let object = Json::Object(vec![("type".to_owned(), Json::String("object".to_owned()))]);
    write(grammar, text, &[object])
}

/// The values that a schema and others admit.
fn write(grammar: &mut Grammar, text: &str, others: &[Json]) -> Result<Symbol, GrammarError> {
    let root: Json = serde_json::from_str(text).map_err(|error| GrammarError::Schema {
        path: String::new(),
        problem: format!("it is not JSON: {error}"),
    })?;
    let mut all = vec![At { schema: &root, path: String::new() }];
    for (number, schema) in others.iter().enumerate() {
        // No JSON pointer is like this.
        all.push(At { schema, path: format!("beside {number}") });
    }
    let mut writer = Writer { root: &root, grammar, known: HashMap::new(), any: None, depth: 0 };
    writer.value(All::of(all))
}

struct Writer<'a> {
    root: &'a Json,
    grammar: &'a mut Grammar,
    known: HashMap<String, usize>,
    /// The rule of any value.
    any: Option<usize>,
    depth: usize,
}

impl<'a> Writer<'a> {
    /// The symbol of the values that satisfy all schemas.
    fn value(&mut self, all: All<'a>) -> Result<Symbol, GrammarError> {
        let Some(all) = self.flattened(all)? else {
            // Nothing satisfies `false`: a rule without alternatives.
            return Ok(Symbol::Rule(self.grammar.rule("nothing")));
        };
        if all.schemas.is_empty() {
            return self.any();
        }
        let key = all.key();
        if let Some(&rule) = self.known.get(&key) {
            return Ok(Symbol::Rule(rule));
        }
        if self.known.len() >= MAX_LISTS || self.depth >= MAX_DEPTH {
            let problem = "its schemas refer to each other in too many combinations";
            return Err(GrammarError::TooLarge(problem.to_owned()));
        }
        let rule = self.grammar.rule("value");
        self.known.insert(key, rule);
        self.depth += 1;
        let written = self.alternatives(rule, &all);
        self.depth -= 1;
        written?;
        Ok(Symbol::Rule(rule))
    }

    /// Any value.
    fn any(&mut self) -> Result<Symbol, GrammarError> {
        if let Some(rule) = self.any {
            return Ok(Symbol::Rule(rule));
        }
        let rule = self.grammar.rule("any");
        self.any = Some(rule);
        for kind in Kind::ALL {
            self.kind(rule, kind, &[])?;
        }
        Ok(Symbol::Rule(rule))
    }

    /// The schemas that all have to be satisfied, with those of `allOf` and `$ref`; none if one of them
    /// is `false`.
    fn flattened(&self, all: All<'a>) -> Result<Option<All<'a>>, GrammarError> {
        let mut flat = All { schemas: Vec::new(), chosen: all.chosen };
        let mut seen = BTreeSet::new();
        let mut waiting = all.schemas;
        waiting.reverse();
        while let Some(at) = waiting.pop() {
            if !seen.insert(at.path.clone()) {
                continue;
            }
            match at.schema {
                Json::Bool(true) => continue,
                Json::Bool(false) => return Ok(None),
                Json::Object(_) => {}
                _ => return Err(at.wrong("a schema is an object, true or false")),
            }
            if seen.len() > MAX_AT_ONCE {
                return Err(at.wrong("a value would have to satisfy too many schemas at once"));
            }
            keywords::check(&at)?;
            let mut more = Vec::new();
            if let Some(reference) = at.inside("$ref") {
                more.push(self.referred(&reference)?);
            }
            more.extend(branches(&at, "allOf")?);
            more.reverse();
            waiting.extend(more);
            if keywords::says_something(at.schema) {
                flat.schemas.push(at);
            }
        }
        Ok(Some(flat))
    }

    /// The schema that a `$ref` names.
    fn referred(&self, reference: &At<'a>) -> Result<At<'a>, GrammarError> {
        let Some(name) = reference.schema.as_str() else {
            return Err(reference.wrong("'$ref' must be a text"));
        };
        let missing = || reference.wrong(format!("'{name}' is not in this schema"));
        let own = self.root.get("$id").and_then(Json::as_str);
        let local = match name.strip_prefix('#') {
            Some(local) => local,
            None => match own.and_then(|own| name.strip_prefix(own.trim_end_matches('#'))) {
                Some(local) => local.strip_prefix('#').unwrap_or(local),
                None => {
                    let problem =
                        format!("'{name}' is elsewhere; a schema has to hold all it needs");
                    return Err(reference.wrong(problem));
                }
            },
        };
        if !local.is_empty() && !local.starts_with('/') {
            return anchored(self.root, "", local).ok_or_else(missing);
        }
        let mut at = At { schema: self.root, path: String::new() };
        for part in local.split('/').skip(1) {
            let part = decoded(part).replace("~1", "/").replace("~0", "~");
            let schema = match at.schema {
                Json::Array(list) => part.parse::<usize>().ok().and_then(|n| list.get(n)),
                other => other.get(&part),
            };
            at = At { schema: schema.ok_or_else(missing)?, path: child(&at.path, &part) };
        }
        Ok(at)
    }

    /// Writes what satisfies all schemas, which are flat, as alternatives of a rule.
    fn alternatives(&mut self, rule: usize, all: &All<'a>) -> Result<(), GrammarError> {
        for (key, is_exclusive) in [("anyOf", false), ("oneOf", true)] {
            for at in &all.schemas {
                let place = child(&at.path, key);
                if at.schema.get(key).is_none() || all.chosen.contains(&place) {
                    continue;
                }
                let branches = branches(at, key)?;
                if is_exclusive {
                    self.check_exclusive(at, &branches)?;
                }
                for branch in branches {
                    let mut one = all.clone();
                    one.chosen.insert(place.clone());
                    one.schemas.push(branch);
                    let symbol = self.value(one)?;
                    self.grammar.add(rule, vec![symbol])?;
                }
                return Ok(());
            }
        }
        let schemas = &all.schemas;
        if let Some(literals) = literal::literals(schemas)? {
            if !literals.is_empty() {
                let texts = literals.iter().map(|literal| RegexAst::Literal(literal.text()));
                let terminal = self.grammar.terminal(RegexAst::Or(texts.collect()));
                self.grammar.add(rule, vec![terminal])?;
            }
            return Ok(());
        }
        for kind in Kinds::of(schemas)?.iter() {
            self.kind(rule, kind, schemas)?;
        }
        Ok(())
    }

    fn kind(&mut self, rule: usize, kind: Kind, schemas: &[At<'a>]) -> Result<(), GrammarError> {
        let symbol = match kind {
            Kind::Null => self.grammar.literal("null"),
            Kind::Boolean => self.grammar.terminal(RegexAst::Regex("true|false".to_owned())),
            Kind::Integer => self.grammar.terminal(number::regex(schemas, true)?),
            Kind::Number => self.grammar.terminal(number::regex(schemas, false)?),
            Kind::String => self.grammar.terminal(string::regex(schemas)?),
            Kind::Array => self.array(schemas)?,
            Kind::Object => self.object(schemas)?,
        };
        self.grammar.add(rule, vec![symbol])
    }

    /// A sign between parts, with space behind it.
    fn sign(&mut self, sign: char) -> Symbol {
        let regex = format!("{}{SPACE}", regex_of(sign));
        self.grammar.terminal(RegexAst::Regex(regex))
    }

    /// A sign that closes, with space before it.
    fn closing(&mut self, sign: char) -> Symbol {
        let regex = format!("{SPACE}{}", regex_of(sign));
        self.grammar.terminal(RegexAst::Regex(regex))
    }
}

fn regex_of(sign: char) -> String {
    format!("\\x{{{:x}}}", sign as u32)
}

/// A JSON string whose text, without escapes, `regex` matches.
fn in_quotes(regex: RegexAst) -> RegexAst {
    RegexAst::JsonQuote(Box::new(regex), JsonQuoteOptions::regular())
}

/// Any text.
fn any_text() -> RegexAst {
    RegexAst::Regex("(?s:.)*".to_owned())
}

/// The branches of `allOf`, `anyOf` or `oneOf`.
fn branches<'a>(at: &At<'a>, key: &str) -> Result<Vec<At<'a>>, GrammarError> {
    let Some(list) = at.inside(key) else { return Ok(Vec::new()) };
    match list.schema {
        Json::Array(branches) if !branches.is_empty() => Ok(branches
            .iter()
            .enumerate()
            .map(|(number, schema)| At { schema, path: child(&list.path, &number.to_string()) })
            .collect()),
        _ => Err(list.wrong(format!("'{key}' must be a list of schemas"))),
    }
}

/// The schema with `$anchor`: `name`.
fn anchored<'a>(schema: &'a Json, path: &str, name: &str) -> Option<At<'a>> {
    if schema.get("$anchor").and_then(Json::as_str) == Some(name) {
        return Some(At { schema, path: path.to_owned() });
    }
    match schema {
        Json::Object(fields) => {
            fields.iter().find_map(|(key, value)| anchored(value, &child(path, key), name))
        }
        Json::Array(values) => values
            .iter()
            .enumerate()
            .find_map(|(n, value)| anchored(value, &child(path, &n.to_string()), name)),
        _ => None,
    }
}

/// A part of a URI without its percent signs.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, more)) = rest.split_first() {
        let hex = more.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = &more[2..];
            }
            None => {
                bytes.push(byte);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
