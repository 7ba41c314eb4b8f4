//! Speculative decoding: proposals change when tokens come, never which.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use surefoot::Footing;
use surefoot::device::{DeviceName, Selector};
use surefoot_models::generate::pages::{self, PageLimits, PagedCache, TokenRun};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::speculate::{self, MOST_ROWS, SpeculationMode, Speculator};
use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens::{self, Request};
use surefoot_models::runner::Runner;
use surefoot_models::stream::needs::Work;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, Model, ModelError, Opened};

/// One of each family that generates text, and of each way of storing weights.
const DECODERS: [&str; 18] = [
    "cohere-tiny",
    "gemma2-tiny",
    "gemma3-tiny",
    "gpt2-tiny",
    "granite-tiny",
    "llama-f16-sharded",
    "llama-mqa-headdim-bias",
    "llama-tiny",
    "mistral-window",
    "mixtral-tiny",
    "neox-serial",
    "neox-tiny",
    "olmo2-tiny",
    "phi3-tiny",
    "qwen2-moe-tiny",
    "qwen2-tiny",
    "qwen3-bias-tied",
    "smollm3-tiny",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn open(name: &str, share: f64, weights: WeightChoice) -> Model {
    let opened = Opened::new(&fixture(name)).unwrap().with_weights(weights);
    let work = Work { batch: 3, prompt: 40, new_tokens: 64, want: tokens::WANT };
    let plan = opened.plan_with_share(&work, share);
    opened.load(&plan, &Device::flex(), Arc::default()).unwrap()
}

fn prompt(number: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| ((at * 31 + number * 17 + 5) % 96) as u32).collect()
}

/// The bits of the logits behind each of the last tokens, which are run so many at a time.
fn bits(model: &Model, tokens: &[u32], prompt: usize, at_once: usize) -> Vec<Vec<u32>> {
    let limits = PageLimits { pages: 64, idle: 0 };
    let mut cache = PagedCache::new(pages::layout(model.blueprint()), limits);
    let mut passes = model.passes();
    cache.begin(1, 0, tokens);
    let run = |tokens| TokenRun { key: 1, tokens, logits: Logits::All, adapter: None };
    cache.run(&mut passes, &[run(&tokens[..prompt])]).unwrap();
    let mut bits = Vec::new();
    for part in tokens[prompt..].chunks(at_once) {
        let logits = cache.run(&mut passes, &[run(part)]).unwrap();
        let rows = logits.numbers.chunks_exact(logits.cols);
        bits.extend(rows.map(|row| row.iter().map(|number| number.to_bits()).collect::<Vec<_>>()));
    }
    bits
}

#[test]
fn a_token_has_the_same_logits_to_the_bit_alone_and_beside_up_to_seven_others() {
    let tokens = prompt(1, 13 + 2 * MOST_ROWS);
    for name in DECODERS {
        for (share, weights) in [
            (1.0, WeightChoice::AsStored),
            (0.0, WeightChoice::AsStored),
            (1.0, WeightChoice::Q8),
            (1.0, WeightChoice::Q4),
        ] {
            let model = open(name, share, weights);
            let alone = bits(&model, &tokens, 13, 1);
            for at_once in [2, 3, 5, MOST_ROWS] {
                let together = bits(&model, &tokens, 13, at_once);
                let differ = (0..alone.len()).filter(|at| alone[*at] != together[*at]).count();
                assert_eq!(differ, 0, "{name}, {share} resident, {weights:?}, {at_once} at once");
            }
        }
    }
}

const BOLD: Sampling = Sampling { temperature: 0.7, top_k: Some(20), top_p: Some(0.9), seed: 3 };

/// Prompts that repeat themselves, so that there is something to look up.
fn prompts() -> Vec<Vec<u32>> {
    vec![prompt(2, 9).repeat(3), vec![11], prompt(3, 20)]
}

fn generated(model: &Model, sampling: Sampling, speculator: &mut Speculator) -> Vec<Vec<u32>> {
    let request = Request { prompts: prompts(), max_tokens: 40, ends: vec![1], sampling };
    let each = |_, _| ControlFlow::Continue(());
    let all = model.generate_speculating(&request, &[], speculator, each).unwrap();
    all.into_iter().map(|one| one.tokens).collect()
}

#[test]
fn looked_up_proposals_change_no_token_resident_and_streamed_greedy_and_sampled() {
    let (mut accepted, mut rejected) = (0, 0);
    for name in DECODERS {
        for share in [1.0, 0.0] {
            let model = open(name, share, WeightChoice::AsStored);
            for sampling in [Sampling::GREEDY, BOLD] {
                let plain = generated(&model, sampling, &mut Speculator::default());
                for mode in [SpeculationMode::Lookup, SpeculationMode::Auto] {
                    let mut speculator = Speculator::new(mode, None);
                    let fast = generated(&model, sampling, &mut speculator);
                    assert_eq!(fast, plain, "{name}, {mode:?}, {share} resident");
                    accepted += speculator.counts().accepted;
                    rejected += speculator.counts().rejected;
                }
            }
        }
    }
    assert!(accepted > 500 && rejected > 500, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn fewer_passes_are_run_where_proposals_are_right() {
    let model = open("llama-tiny", 0.0, WeightChoice::AsStored);
    let read = |speculator: &mut Speculator| {
        let before = model.meter().read().file_bytes;
        let request = Request {
            prompts: vec![prompt(2, 9)],
            max_tokens: 60,
            ends: Vec::new(),
            sampling: Sampling::GREEDY,
        };
        let each = |_, _| ControlFlow::Continue(());
        model.generate_speculating(&request, &[], speculator, each).unwrap();
        model.meter().read().file_bytes - before
    };
    let plain = read(&mut Speculator::default());
    let mut speculator = Speculator::new(SpeculationMode::Lookup, None);
    let fast = read(&mut speculator);
    // A tiny model's greedy text goes round in circles, which are looked up.
    assert!(speculator.counts().accepted > 10, "{:?}", speculator.counts());
    // A pass that is read ahead and not needed any more may be counted.
    assert!(fast < plain, "{fast} bytes with proposals, {plain} without");
}

#[test]
fn tokens_that_an_earlier_attempt_had_are_gone_on_behind_with_the_same_tokens() {
    let model = open("llama-tiny", 1.0, WeightChoice::AsStored);
    for sampling in [Sampling::GREEDY, BOLD] {
        let plain = generated(&model, sampling, &mut Speculator::default());
        for known in [1, 7, 8, 9, 25] {
            let known: Vec<Vec<u32>> =
                plain.iter().map(|tokens| tokens[..known.min(tokens.len())].to_vec()).collect();
            let request = Request { prompts: prompts(), max_tokens: 40, ends: vec![1], sampling };
            let mut speculator = Speculator::new(SpeculationMode::Lookup, None);
            let mut new = 0;
            let each = |_, _| {
                new += 1;
                ControlFlow::Continue(())
            };
            let again =
                model.generate_speculating(&request, &known, &mut speculator, each).unwrap();
            let again: Vec<Vec<u32>> = again.into_iter().map(|one| one.tokens).collect();
            assert_eq!(again, plain);
            let count = |all: &[Vec<u32>]| all.iter().map(Vec::len).sum::<usize>();
            assert_eq!(new, count(&plain) - count(&known), "only what is new is given");
        }
    }
}

fn runner(model: &str, drill: &str) -> Runner {
    let mut builder = Footing::builder().devices(Selector::only(DeviceName::CPU));
    if !drill.is_empty() {
        builder = builder.drill(drill.parse().unwrap());
    }
    Runner::open(Arc::new(builder.build().unwrap()), &fixture(model)).unwrap()
}

/// The tokens of a guarded run, what became of proposals, and how often drills struck.
fn run(
    model: &str,
    drill: &str,
    mode: SpeculationMode,
    draft: Option<&str>,
) -> (Vec<Vec<u32>>, speculate::SpeculationCounts, u64) {
    let runner = runner(model, drill);
    let texts = Texts::open(&fixture(model), 256).unwrap();
    let draft = draft.map(fixture);
    let (mut speculator, _) = speculate::open(&runner, mode, draft.as_deref(), 3, 100).unwrap();
    let request =
        Request { prompts: prompts(), max_tokens: 40, ends: vec![1], sampling: Sampling::GREEDY };
    let mut reported: Vec<Vec<u32>> = vec![Vec::new(); 3];
    let mut report = |new: surefoot_models::runner::NewToken<'_>| {
        reported[new.prompt].extend(new.token);
        Ok(())
    };
    let outcome = runner
        .generate_speculating(&texts, &request, &[], &[], &mut speculator, &mut report)
        .unwrap();
    let tokens: Vec<Vec<u32>> = outcome.value.into_iter().map(|one| one.tokens).collect();
    assert_eq!(reported, tokens, "each token is reported once: {drill}");
    let struck = runner.footing().drill().strikes().iter().map(|rule| rule.struck).sum();
    (tokens, speculator.counts(), struck)
}

#[test]
fn a_draft_model_changes_no_token_whether_it_is_right_or_wrong() {
    for model in ["llama-tiny", "gpt2-tiny", "qwen2-tiny"] {
        let (plain, none, _) = run(model, "", SpeculationMode::Off, None);
        assert_eq!(none, speculate::SpeculationCounts::default());
        for draft in ["llama-tiny", "neox-tiny", "qwen2-tiny", "gpt2-tiny"] {
            for mode in [SpeculationMode::Draft, SpeculationMode::Auto] {
                let (fast, counts, _) = run(model, "", mode, Some(draft));
                assert_eq!(fast, plain, "{draft} drafts for {model}, {mode:?}");
                if mode == SpeculationMode::Draft {
                    assert!(counts.accepted + counts.rejected > 0, "{draft} for {model}");
                }
                if mode == SpeculationMode::Draft && draft == model {
                    // The model itself is right but for rounding: its draft runs other passes.
                    let share = counts.share().unwrap();
                    assert!(share > 0.9, "{share} of its own tokens");
                }
            }
        }
    }
}

#[test]
fn a_draft_model_that_is_not_smaller_is_left_out_and_never_run_unless_it_is_asked_for() {
    let (plain, ..) = run("llama-tiny", "", SpeculationMode::Off, None);
    let drill = "unsupported_op:op=draft,count=500";
    let (tokens, counts, struck) =
        run("llama-tiny", drill, SpeculationMode::Auto, Some("llama-tiny"));
    assert_eq!((&tokens, struck), (&plain, 0), "the draft model ran");
    assert!(counts.accepted > 0, "what came before is proposed instead: {counts:?}");
    let (tokens, _, struck) = run("llama-tiny", drill, SpeculationMode::Draft, Some("llama-tiny"));
    assert_eq!(tokens, plain);
    assert!(struck > 0);
    let model = runner("llama-tiny", "");
    let folder = fixture("llama-tiny");
    let open = |mode| speculate::open(&model, mode, Some(&folder), 1, 100).unwrap();
    let (speculator, bytes) = open(SpeculationMode::Auto);
    let unused = speculator.unused_draft().unwrap();
    assert_eq!((&unused.draft, unused.draft_bytes), (&folder, unused.model_bytes));
    assert!(unused.to_string().contains("--speculate draft"), "{unused}");
    let (speculator, bytes_of_both) = open(SpeculationMode::Draft);
    assert_eq!(speculator.unused_draft(), None);
    assert!(bytes < bytes_of_both, "no memory is set aside for it: {bytes} and {bytes_of_both}");
    let smaller = fixture("qwen2-tiny");
    let (speculator, _) =
        speculate::open(&model, SpeculationMode::Auto, Some(&smaller), 1, 100).unwrap();
    assert_eq!(speculator.unused_draft(), None);
}

#[test]
fn a_fault_at_any_moment_changes_no_token() {
    let (plain, ..) = run("llama-tiny", "", SpeculationMode::Off, None);
    for (drill, draft, strikes) in [
        ("out_of_memory:op=generate", None, 1),
        ("command_buffer:op=generate,at=during,nth=90", None, 1),
        ("out_of_memory:op=generate,at=during,nth=400,count=2", None, 2),
        ("command_buffer:op=generate,at=after", None, 1),
        ("command_buffer:op=generate,at=during,nth=250", Some("qwen2-tiny"), 1),
        ("out_of_memory:op=draft", Some("qwen2-tiny"), 1),
        ("command_buffer:op=draft,at=during,nth=30", Some("qwen2-tiny"), 1),
        ("numeric:op=draft,at=after,step=3", Some("qwen2-tiny"), 1),
        // Drafting fails for good; decoding does not.
        ("unsupported_op:op=draft,count=500", Some("llama-tiny"), 3),
    ] {
        let mode = if draft.is_some() { SpeculationMode::Draft } else { SpeculationMode::Lookup };
        let (tokens, counts, struck) = run("llama-tiny", drill, mode, draft);
        assert_eq!(tokens, plain, "{drill}");
        assert!(struck >= strikes, "{drill} struck {struck} times");
        if draft.is_none() {
            assert!(counts.accepted > 0, "{drill}");
        }
    }
}

#[test]
fn a_draft_model_with_another_vocabulary_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(fixture("llama-tiny")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let file = folder.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let (one, other) = (vocab["a"].clone(), vocab["b"].clone());
    vocab.insert("a".to_owned(), other);
    vocab.insert("b".to_owned(), one);
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let model = runner("llama-tiny", "");
    let refused = speculate::open(&model, SpeculationMode::Auto, Some(folder.path()), 1, 100);
    let error = refused.unwrap_err();
    assert!(matches!(error, ModelError::DraftVocabulary { .. }), "{error}");
    let text = error.to_string();
    let name = folder.path().display().to_string();
    assert!(
        text.contains(&name) && text.contains("\"b\"") && text.contains("same tokenizer"),
        "{text}"
    );
    let encoder =
        speculate::open(&model, SpeculationMode::Auto, Some(&fixture("bert-tiny")), 1, 100);
    assert!(encoder.unwrap_err().to_string().contains("encoder"));
}
