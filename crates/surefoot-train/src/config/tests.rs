//! Configurations that are right, and mistakes that are told.

use super::*;
use proptest::prelude::*;

const SMALL: &str = "data: {kind: digits}\nmodel:\n  kind: mlp\nepochs: 3\n";

fn wrong(text: &str) -> ConfigError {
    Config::parse(text, &[]).unwrap_err()
}

#[test]
fn a_small_configuration_has_defaults_for_the_rest() {
    let config = Config::parse(SMALL, &[]).unwrap();
    assert_eq!(config.length, Length::Epochs(3));
    assert_eq!(config.model, ModelConfig::Mlp { hidden: vec![128] });
    assert_eq!((config.batch_size, config.seed), (64, 42));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_right_one() {
    let error = wrong(&format!("{SMALL}batchsize: 32\n"));
    assert_eq!(error.line, 5);
    assert!(error.to_string().contains("'batchsize'"), "{error}");
    assert_eq!(error.hint.as_deref(), Some("did you mean 'batch_size'?"));
    let error = wrong("data:\n  kind: digits\n  pth: x\nmodel: {kind: mlp}\nepochs: 1\n");
    assert_eq!((error.line, error.why.as_str()), (3, "there is no key 'data.pth'"));
    let error = wrong(&format!("{SMALL}zzz: 1\n"));
    assert!(error.hint.unwrap().contains("accumulate"), "the keys are listed");
}

#[test]
fn a_wrong_value_says_what_would_be_right() {
    for (text, line, why) in [
        ("data: {kind: digit}\nmodel: {kind: mlp}\nepochs: 1", 1, "did you mean 'digits'"),
        ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 0", 3, "above 0"),
        ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 1\ndevice: tpu", 4, "'tpu'"),
        ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: [1]", 3, "single value"),
        ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 1\nepochs: 2", 4, "twice"),
        ("data: {kind: digits}\nmodel: {kind: cnn, width: 9}\nepochs: 1", 2, "multiple of 8"),
        ("data: digits", 1, "keys with values"),
        ("a: [1", 1, "YAML"),
    ] {
        let error = wrong(text);
        assert!(error.to_string().contains(why), "{text}: {error}");
        assert!(error.line == line || why == "YAML", "{text}: {error}");
    }
    assert!(wrong("data: {kind: digits}\nmodel: {kind: gpt}\nepochs: 1").why.contains("text"));
}

#[test]
fn numbers_that_run_over_when_multiplied_are_refused() {
    // 2^32 times 2^32 is 0 in 64 bits.
    let error = wrong(&format!("{SMALL}batch_size: 4294967296\naccumulate: 4294967296\n"));
    assert!(error.why.contains("samples for one step") && error.hint.is_some(), "{error}");
    assert!(wrong(&format!("{SMALL}batch_size: {}\n", u64::MAX)).why.contains("batch_size"));
    let flags = [("epochs".to_owned(), u64::MAX.to_string())];
    let error = Config::parse(SMALL, &flags).unwrap_err();
    assert!(error.why.contains("up to 1000000000"), "{error}");
}

#[test]
fn loading_is_chosen_unless_it_is_said() {
    let config = |text: &str| Config::parse(&format!("{SMALL}{text}"), &[]).unwrap().loading;
    assert_eq!(config(""), LoadingConfig::default());
    assert_eq!(config("workers: auto\nprefetch: auto\nstaging: auto\n"), LoadingConfig::default());
    let said = config("workers: 0\nprefetch: 3\nstaging: on\n");
    let right = LoadingConfig { workers: Some(0), prefetch: Some(3), staging: Some(true) };
    assert_eq!(said, right);
    assert!(wrong(&format!("{SMALL}prefetch: 0\n")).to_string().contains("from 1 to 256"));
    assert!(wrong(&format!("{SMALL}staging: maybe\n")).to_string().contains("'maybe'"));
}

#[test]
fn flags_override_keys_and_their_mistakes_are_told_as_theirs() {
    let flag = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    let config = Config::parse(SMALL, &flag("optimizer.lr", "0.5")).unwrap();
    assert_eq!(config.optimizer.lr, 0.5);
    let config = Config::parse(SMALL, &flag("steps", "7")).unwrap();
    assert_eq!(config.length, Length::Steps(7));
    let config = Config::parse(SMALL, &flag("model.hidden", "[3, 4]")).unwrap();
    assert_eq!(config.model, ModelConfig::Mlp { hidden: vec![3, 4] });
    let error = Config::parse(SMALL, &flag("optimizer.lrr", "1")).unwrap_err();
    assert_eq!(error.line, 0);
    assert_eq!(error.hint.as_deref(), Some("did you mean 'lr'?"));
}

#[test]
fn the_configurations_that_come_along_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect();
    assert!(files.len() >= 6);
    for file in files {
        Config::read(&file, &[]).unwrap_or_else(|error| panic!("{error}"));
    }
}

proptest! {
    #[test]
    fn any_text_is_a_configuration_or_an_error(text in "[a-z0-9:,\\[\\]{}\\- \n'\"&*!|>%@`#]{0,80}") {
        let _ = Config::parse(&text, &[]);
    }

    #[test]
    fn any_flag_is_taken_or_an_error(key in "[a-z.]{0,12}", value in ".{0,12}") {
        let _ = Config::parse(SMALL, &[(key, value)]);
    }
}
