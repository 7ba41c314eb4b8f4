//! Regular expressions, choices and grammars.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod random_text;

use std::sync::Arc;

use random_text::{admits, generated, vocabulary};
use surefoot_grammar::{Constraint, Format, GrammarError, Vocabulary};

fn constraint(format: &Format) -> Arc<Constraint> {
    Arc::new(format.constraint(&vocabulary()).unwrap())
}

fn gbnf(text: &str) -> Format {
    Format::Gbnf(text.to_owned())
}

/// llama.cpp's example of arithmetic, with a comment and rules over several lines.
const ARITHMETIC: &str = r##"
# expressions
root  ::= expr
expr  ::= term ([-+*/] term)*
term  ::= ident | num
        | "(" ws expr ws ")"   # in brackets
ident ::= [a-z] [a-z0-9_]{0,5}
num   ::= "-"? [0-9]{1,3} ("." [0-9]+)?
ws    ::= [ \t\n]*
"##;

#[test]
fn a_regular_expression_is_matched_as_a_whole() {
    let dates = constraint(&Format::Regex(r"\d{4}-\d\d(-\d\d)?".to_owned()));
    assert!(admits(&dates, "2024-12") && admits(&dates, "2024-12-31"));
    assert!(!admits(&dates, "x2024-12") && !admits(&dates, "2024-1"));
    let vocabulary = vocabulary();
    for seed in 0..50 {
        let text = generated(&dates, &vocabulary, seed, 20);
        assert!(text.len() == 7 || text.len() == 10, "{text}");
    }
}

#[test]
fn one_of_the_choices_comes() {
    let texts = ["red", "dark red", "日本"].map(str::to_owned).to_vec();
    let choice = constraint(&Format::Choice(texts.clone()));
    for seed in 0..50 {
        assert!(texts.contains(&generated(&choice, &vocabulary(), seed, 30)));
    }
    assert!(!admits(&choice, "dark"));
}

#[test]
fn a_grammar_is_followed_through_its_recursion() {
    let expressions = constraint(&gbnf(ARITHMETIC));
    for text in ["1", "a+b", "(a1*(-2.5/x))", "((1))-( y )"] {
        assert!(admits(&expressions, text), "{text}");
    }
    for text in ["", "1+", "(1", "1)", "abcdefg", "+1"] {
        assert!(!admits(&expressions, text), "{text}");
    }
    for seed in 0..50 {
        let text = generated(&expressions, &vocabulary(), seed, 60);
        assert_eq!(text.matches('(').count(), text.matches(')').count(), "{text}");
        assert!(admits(&expressions, &text), "{text}");
    }
}

#[test]
fn repetitions_classes_and_escapes_mean_what_they_do_in_llama_cpp() {
    let format = gbnf(
        "root ::= (pair \"\\n\"){2,3} [^a-c\\]] . \"\\x41\\u00e9\"\npair ::= \"(\" pair? \")\"",
    );
    let pairs = constraint(&format);
    for text in ["()\n(())\nd.Aé", "()\n()\n()\n日\nAé"] {
        assert!(admits(&pairs, text), "{text}");
    }
    for text in ["()\nd.Aé", "()\n()\na.Aé", "()\n()\n].Aé", "()\n(\nd.Aé"] {
        assert!(!admits(&pairs, text), "{text}");
    }
}

#[test]
fn a_grammar_that_can_not_be_is_refused_with_its_line() {
    let refused = |text: &str| gbnf(text).constraint(&vocabulary()).unwrap_err();
    for (text, line, problem) in [
        ("", 1, "no rule 'root'"),
        ("root ::= a\n", 1, "no rule 'a'"),
        ("root ::= \"a\nb", 2, "no end"),
        ("root ::= (\"a\"", 1, "')' is missing"),
        ("root ::= \"a\"\nroot ::= \"b\"", 2, "twice"),
        ("root = \"a\"", 1, "'::='"),
        ("root ::= [z-a]", 1, "is empty"),
        ("root ::= \"a\"{3,1}", 1, "ends before"),
        ("root ::= \"a\"\n  \"\\q\"", 2, "not known"),
    ] {
        match refused(text) {
            GrammarError::Notation { line: at, problem: told } => {
                assert!(told.contains(problem), "{text}: {told}");
                assert_eq!(at, line, "{text}: {told}");
            }
            other => panic!("{text}: {other}"),
        }
    }
    let left = refused("root ::= list\nlist ::= list \",\" \"a\" | \"a\"");
    assert_eq!(left, GrammarError::LeftRecursion("list".to_owned()));
    let hidden = refused("root ::= a root | \"x\"\na ::= \"y\"*");
    assert_eq!(hidden, GrammarError::LeftRecursion("root".to_owned()));
    assert_eq!(refused("root ::= \"a\" root"), GrammarError::Unsatisfiable);
    let regex = Format::Regex("(".to_owned()).constraint(&vocabulary());
    assert!(matches!(regex, Err(GrammarError::Regex(_))));
}

#[test]
fn a_vocabulary_without_some_bytes_spells_only_what_it_can_complete() {
    // Letters and quotes, and é as one token: its bytes alone are no tokens.
    let tokens: Vec<Vec<u8>> =
        ["", "\"", "a", "b", "é", "ab\""].iter().map(|t| t.as_bytes().to_vec()).collect();
    let few = Arc::new(Vocabulary::new(tokens.len(), move |id| {
        Some(tokens[id as usize].clone()).filter(|token| !token.is_empty())
    }));
    let schema = Format::JsonSchema(r#"{"type": "string", "minLength": 3}"#.to_owned());
    let constraint = Arc::new(schema.constraint(&few).unwrap());
    for seed in 0..50 {
        let text = generated(&constraint, &few, seed, 30);
        assert!(
            text.len() >= 5 && text[1..text.len() - 1].chars().all(|c| "ab".contains(c)),
            "{text}"
        );
    }
    let object = Format::JsonObject.constraint(&few);
    assert_eq!(object.unwrap_err(), GrammarError::Unsatisfiable);
}
