//! Regular expressions, choices and grammars.

use surefoot_serve::structured::{Constraint, Format, FormatError};

use crate::random_text::Tokens;

fn constraint(format: &Format) -> (Tokens, Constraint) {
    let tokens = Tokens::of_bytes_and_words();
    let constraint = tokens.constraint(format).unwrap();
    (tokens, constraint)
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
    let (tokens, dates) = constraint(&Format::Regex(r"\d{4}-\d\d(-\d\d)?".to_owned()));
    assert!(tokens.admits(&dates, "2024-12") && tokens.admits(&dates, "2024-12-31"));
    assert!(!tokens.admits(&dates, "x2024-12") && !tokens.admits(&dates, "2024-1"));
    assert!(!tokens.admits(&dates, "٢٠٢٤-12"), "digits are ASCII");
    for seed in 0..50 {
        let (text, _) = tokens.generated(&dates, seed, 20);
        assert!(text.len() == 7 || text.len() == 10, "{text}");
    }
}

#[test]
fn one_of_the_choices_comes() {
    let texts = ["red", "dark red", "日本", "a/b\"c|d"].map(str::to_owned).to_vec();
    let (tokens, choice) = constraint(&Format::Choice(texts.clone()));
    for seed in 0..50 {
        assert!(texts.contains(&tokens.generated(&choice, seed, 30).0));
    }
    assert!(!tokens.admits(&choice, "dark"));
}

#[test]
fn a_grammar_is_followed_through_its_recursion() {
    let (tokens, expressions) = constraint(&gbnf(ARITHMETIC));
    for text in ["1", "a+b", "(a1*(-2.5/x))", "((1))-( y )"] {
        assert!(tokens.admits(&expressions, text), "{text}");
    }
    for text in ["", "1+", "(1", "1)", "abcdefg", "+1"] {
        assert!(!tokens.admits(&expressions, text), "{text}");
    }
    for seed in 0..50 {
        let (text, complete) = tokens.generated(&expressions, seed, 60);
        assert!(complete, "{text}");
        assert_eq!(text.matches('(').count(), text.matches(')').count(), "{text}");
    }
}

#[test]
fn a_grammar_without_recursion_needs_no_lexer() {
    // The longest match of [a-z]* would swallow the end.
    let (tokens, ends) =
        constraint(&gbnf("root ::= word \"end\" | \"a\" \"bc\" | \"ab\" \"d\"\nword ::= [a-z]*"));
    for text in ["end", "bendend", "abc", "abd"] {
        assert!(tokens.admits(&ends, text), "{text}");
    }
    let (tokens, nested) = constraint(&gbnf(
        "root ::= \"a\" \"bc\" | \"ab\" \"d\" | \"<\" [a-z]* \"end\" | \"[\" root \"]\"",
    ));
    for text in ["abc", "[[abd]]", "[<bendend]"] {
        assert!(tokens.admits(&nested, text), "{text}");
    }
    let (tokens, left) = constraint(&gbnf("root ::= list\nlist ::= list \",\" \"a\" | \"a\""));
    assert!(tokens.admits(&left, "a,a,a") && !tokens.admits(&left, "a,"));
}

#[test]
fn repetitions_classes_and_escapes_mean_what_they_do_in_llama_cpp() {
    let format = gbnf(
        "root ::= (pair \"\\n\"){2,3} [^a-c\\]] . \"\\x41\\u00e9\"\npair ::= \"(\" pair? \")\"",
    );
    let (tokens, pairs) = constraint(&format);
    for text in ["()\n(())\nd.Aé", "()\n()\n()\n日\nAé"] {
        assert!(tokens.admits(&pairs, text), "{text}");
    }
    for text in ["()\nd.Aé", "()\n()\na.Aé", "()\n()\n].Aé", "()\n(\nd.Aé"] {
        assert!(!tokens.admits(&pairs, text), "{text}");
    }
}

#[test]
fn a_grammar_that_can_not_be_is_refused_with_its_line() {
    let tokens = Tokens::of_bytes_and_words();
    let refused = |text: &str| tokens.constraint(&gbnf(text)).unwrap_err();
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
            FormatError::Grammar { line: at, problem: told } => {
                assert!(told.contains(problem), "{text}: {told}");
                assert_eq!(at, line, "{text}: {told}");
            }
            other => panic!("{text}: {other}"),
        }
    }
    let regex = tokens.constraint(&Format::Regex("(".to_owned()));
    assert!(matches!(regex, Err(FormatError::Regex(_))));
}

#[test]
fn a_vocabulary_without_some_bytes_spells_only_what_it_has() {
    // Letters and quotes, and é as one token: its bytes alone are no tokens.
    let few = Tokens::new(&["\"", "a", "b", "é", "ab\""].map(str::as_bytes));
    let schema = Format::JsonSchema(r#"{"type": "string", "minLength": 3}"#.to_owned());
    let constraint = few.constraint(&schema).unwrap();
    for seed in 0..50 {
        let (text, complete) = few.generated(&constraint, seed, 30);
        assert!(complete, "{text}");
        assert!(text[1..text.len() - 1].chars().all(|c| "abé".contains(c)), "{text}");
        assert!(text.chars().count() >= 5, "{text}");
    }
    let object = few.constraint(&Format::JsonObject);
    assert_eq!(object.unwrap_err(), FormatError::Unsatisfiable);
}
