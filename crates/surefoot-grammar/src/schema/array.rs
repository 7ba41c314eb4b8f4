//! Lists by their items.

use super::{All, At, Writer, string};
use crate::error::GrammarError;
use crate::grammar::Symbol;
use crate::json::Json;

/// The most items that a schema can count.
const MAX_ITEMS: u32 = 5_000;

impl<'a> Writer<'a> {
    /// The lists that all schemas admit.
    pub(super) fn array(&mut self, schemas: &[At<'a>]) -> Result<Symbol, GrammarError> {
        let (mut least, mut most) = (0_u32, None);
        for at in schemas {
            least = least.max(string::count(at, "minItems", MAX_ITEMS)?.unwrap_or(0));
            let limit = string::count(at, "maxItems", MAX_ITEMS)?;
            most = most.into_iter().chain(limit).min();
        }
        for at in schemas {
            if matches!(at.schema.get("uniqueItems"), Some(Json::Bool(true)))
                && most.is_none_or(|most| most > 1)
            {
                return Err(at.wrong("'uniqueItems' is not supported, unless 'maxItems' is 1"));
            }
            if at.schema.get("contains").is_some() {
                return Err(at.wrong("'contains' is not supported"));
            }
        }
        let listed = schemas.iter().map(|at| prefix(at).map_or(0, |(_, list)| list.len()));
        let listed = listed.max().unwrap_or(0) as u32;
        // From here on all items are alike, and if there is no limit, so are the rests of the list.
        let alike = listed.max(least);
        let last = most.unwrap_or(alike);
        let (open, comma, close) = (self.sign('['), self.sign(','), self.closing(']'));
        let rests: Vec<usize> = (0..=last.max(least)).map(|_| self.grammar.rule("items")).collect();
        let mut rest_item = None;
        for (number, &rest) in rests.iter().enumerate() {
            let number = number as u32;
            if number >= least {
                self.grammar.add(rest, vec![close])?;
            }
            if most.is_some_and(|most| number >= most) {
                continue;
            }
            let item = match rest_item.filter(|_| number > listed) {
                Some(item) => item,
                None => {
                    let item = self.value(All::of(items(schemas, number as usize)))?;
                    if number >= listed {
                        rest_item = Some(item);
                    }
                    item
                }
            };
            let next = rests.get(number as usize + 1).copied().unwrap_or(rest);
            match number {
                0 if next == rest => {
                    // Without a limit the first one is the only one without a comma.
                    let more = self.grammar.rule("items");
                    self.grammar.add(more, vec![close])?;
                    self.grammar.add(more, vec![comma, item, Symbol::Rule(more)])?;
                    self.grammar.add(rest, vec![item, Symbol::Rule(more)])?;
                }
                0 => self.grammar.add(rest, vec![item, Symbol::Rule(next)])?,
                _ => self.grammar.add(rest, vec![comma, item, Symbol::Rule(next)])?,
            }
        }
        let rule = self.grammar.rule("array");
        self.grammar.add(rule, vec![open, Symbol::Rule(rests[0])])?;
        Ok(Symbol::Rule(rule))
    }
}

/// The schemas of the first items, and the keyword that has them.
fn prefix<'a>(at: &At<'a>) -> Option<(At<'a>, &'a [Json])> {
    for key in ["prefixItems", "items"] {
        if let Some(list) = at.inside(key)
            && let Json::Array(items) = list.schema
        {
            return Some((list, items));
        }
    }
    None
}

/// The schemas of the item of a number.
fn items<'a>(schemas: &[At<'a>], number: usize) -> Vec<At<'a>> {
    let mut all = Vec::new();
    for at in schemas {
        let rest = match prefix(at) {
            Some((list, items)) => match items.get(number) {
                Some(schema) => {
                    all.push(At { schema, path: super::child(&list.path, &number.to_string()) });
                    continue;
                }
                None if list.path.ends_with("/items") => at.inside("additionalItems"),
                None => at.inside("items"),
            },
            None => at.inside("items"),
        };
        all.extend(rest);
    }
    all
}
