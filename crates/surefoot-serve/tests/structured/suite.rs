//! The public JSON Schema Test Suite (draft 2020-12): a schema is refused or enforced, never half enforced.

use std::collections::BTreeMap;

use boon::{Compiler, Schemas};
use serde::Deserialize;
use serde_json::Value;
use surefoot_serve::structured::Format;

use crate::random_text::{Tokens, parsed};

#[derive(Deserialize)]
struct Group {
    description: String,
    schema: Value,
    tests: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    data: Value,
    valid: bool,
}

/// Files of the suite whose schemas are about other documents than the schema itself, which a server does
/// not fetch, and so can't be compiled by the validator here either.
const ELSEWHERE: [&str; 4] = ["refRemote", "vocabulary", "dynamicRef", "anchor"];

#[test]
fn what_is_not_refused_is_valid_by_an_independent_validator() {
    let tokens = Tokens::of_bytes_and_words();
    let suite: BTreeMap<String, Vec<Group>> =
        serde_json::from_str(include_str!("draft2020-12.json")).unwrap();
    let (mut enforced, mut refused, mut answers, mut kept_out) = (0, 0, 0, 0);
    for (file, groups) in &suite {
        if ELSEWHERE.contains(&file.as_str()) {
            continue;
        }
        for Group { description, schema, tests } in groups {
            let name = format!("{file}: {description}");
            let constraint = match tokens.constraint(&Format::JsonSchema(schema.to_string())) {
                Ok(constraint) => constraint,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            enforced += 1;
            let mut schemas = Schemas::new();
            let mut compiler = Compiler::new();
            compiler.add_resource("schema.json", schema.clone()).unwrap();
            let index = compiler.compile("schema.json", &mut schemas).unwrap();
            for seed in 0..6 {
                let (text, complete) = tokens.generated(&constraint, seed, 120);
                if !complete {
                    continue;
                }
                answers += 1;
                let Some(value) = parsed(&text) else { continue };
                if let Err(error) = schemas.validate(&value, index) {
                    panic!("{name}, seed {seed}: {error:#}: {text}");
                }
            }
            for Instance { data, .. } in tests.iter().filter(|instance| !instance.valid) {
                kept_out += 1;
                let text = data.to_string();
                assert!(!tokens.admits(&constraint, &text), "{name}: {text} can come");
            }
        }
    }
    eprintln!(
        "{enforced} schemas enforced, {refused} refused, {answers} answers, {kept_out} kept out"
    );
    // 151 when this was written; refused are above all `unevaluated…`, `uniqueItems`, `contains`, `if`, `not`
    // and `dependent…`.
    assert!(enforced >= 140, "{enforced} enforced, {refused} refused");
    assert!(answers >= 5 * enforced, "{answers} complete answers of {}", 6 * enforced);
}
