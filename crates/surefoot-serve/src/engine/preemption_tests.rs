//! A cache that is too small for all who are decoded: sequences give up their pages, are run again later, and get the
//! tokens that they get alone, also when devices fail meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use surefoot::Footing;
use surefoot::device::{DeviceName, Selector};
use surefoot::recover::Drill;
use surefoot_models::embed::Pooling;
use surefoot_models::generate::pages::{self, PagedCache};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::speculate::{self, Candidate, SpeculationMode};
use surefoot_models::runner::Runner;
use surefoot_models::weights::choice::WeightChoice;

use super::activity_log::ActivityLog;
use super::decode_pass::{CacheSlot, Pass};
use super::live::LiveSequences;
use super::pass_budget::PassBudget;
use super::schedule::Share;
use super::sequence::Sequence;
use super::{
    Decoder, Engine, EngineCapacity, EngineLimits, EngineSettings, Generation, GenerationEvent,
    LogitRules,
};
use crate::metrics::Metrics;

const TOKENS: usize = 40;

const LIMITS: EngineLimits = EngineLimits {
    sequences: 8,
    context: Some(128),
    texts: 1,
    text_tokens: None,
    pass_tokens: 64,
    queue: 64,
    patience: Duration::ZERO,
    batches_in_flight: 1,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

fn footing(drill: &str) -> Arc<Footing> {
    let builder = Footing::builder().devices(Selector::only(DeviceName::CPU));
    let builder = match drill {
        "" => builder,
        drill => builder.drill(drill.parse::<Drill>().unwrap()),
    };
    Arc::new(builder.build().unwrap())
}

/// An engine whose cache has the least number of pages: those of one sequence of full length.
fn engine(drill: &str) -> (Engine, Arc<Metrics>) {
    speculating(drill, SpeculationMode::Off, None)
}

/// One that proposes tokens.
fn speculating(
    drill: &str,
    speculation: SpeculationMode,
    draft: Option<&str>,
) -> (Engine, Arc<Metrics>) {
    let folder = fixture("llama-tiny");
    let footing = footing(drill);
    let settings = EngineSettings {
        limits: LIMITS,
        pooling: Pooling::Mean,
        journal: surefoot::journal::Journal::off(),
        weights: WeightChoice::AsStored,
        adapter: None,
        adapters: Vec::new(),
        speculation,
        draft: draft.map(fixture),
    };
    let metrics: Arc<Metrics> = Arc::default();
    let shrink = |capacity: &mut EngineCapacity| capacity.cache_tokens = 0;
    let engine =
        Engine::start_with(&folder, footing, settings, Arc::clone(&metrics), shrink).unwrap();
    (engine, metrics)
}

fn prompt(number: usize) -> Vec<u32> {
    (0..20 + 7 * number).map(|at| ((at * 31 + number * 17 + 5) % 96) as u32).collect()
}

/// The tokens behind these prompts, run at the same time.
fn tokens(engine: &Engine, numbers: &[usize]) -> Vec<Vec<u32>> {
    tokens_behind(engine, numbers.iter().map(|number| prompt(*number)).collect())
}

fn generation(prompt: Vec<u32>, max_tokens: usize) -> Generation {
    Generation {
        prompt,
        adapter: None,
        max_tokens,
        sampling: Sampling::GREEDY,
        rules: LogitRules::default(),
        constraint: None,
        logprobs: None,
        rates_prompt: false,
    }
}

fn tokens_behind(engine: &Engine, prompts: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let generations = prompts.into_iter().map(|prompt| generation(prompt, TOKENS));
    let streams = engine.generate(generations.collect(), None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answers = streams.into_iter().map(|mut stream| {
        runtime.block_on(async {
            let mut tokens = Vec::new();
            loop {
                match stream.recv().await.unwrap() {
                    GenerationEvent::Token { id, .. } => tokens.push(id),
                    GenerationEvent::Ended(_) => break tokens,
                    GenerationEvent::Failed(error) => panic!("{error}"),
                    GenerationEvent::Prompt(_) => {}
                }
            }
        })
    });
    answers.collect()
}

#[test]
fn sequences_that_give_up_their_pages_get_the_tokens_they_get_alone() {
    let numbers: Vec<usize> = (0..8).collect();
    let (calm, metrics) = engine("");
    let alone: Vec<Vec<u32>> = numbers.iter().flat_map(|at| tokens(&calm, &[*at])).collect();
    assert!(alone.iter().filter(|tokens| tokens.len() == TOKENS).count() > 3, "{alone:?}");
    assert_eq!(metrics.counts().preemptions, 0, "one alone has room");
    assert_eq!(tokens(&calm, &numbers), alone);
    assert!(metrics.counts().preemptions > 0, "nine pages are too few for eight sequences");
    for (mode, draft) in
        [(SpeculationMode::Lookup, None), (SpeculationMode::Draft, Some("llama-tiny"))]
    {
        let (fast, metrics) = speculating("", mode, draft);
        assert_eq!(tokens(&fast, &numbers), alone, "{mode:?}");
        assert!(metrics.counts().preemptions > 0, "{mode:?}");
        if draft.is_some() {
            assert!(metrics.counts().accepted_proposals > 0, "the model drafts for itself");
        }
    }
    for drill in [
        "out_of_memory:op=decode,at=before,step=9,count=1;numeric:op=decode,at=after,step=30,count=1",
        "command_buffer:op=decode,at=during,nth=3,step=17,count=1",
        "out_of_memory:op=decode,at=during,nth=5,step=40,count=2",
    ] {
        let (struck, metrics) = engine(drill);
        assert_eq!(tokens(&struck, &numbers), alone, "{drill}");
        assert_eq!((metrics.counts().failed, metrics.counts().finished), (0, 8), "{drill}");
    }
}

/// When the ladder ends, each sequence is run alone, while those that had their turn hold pages. Sequences that begin alike fit into
/// few pages together; after the cache was lost each has pages of its own.
#[test]
fn issue_17_where_pages_are_few_a_pass_that_fails_for_good_is_run_by_each_alone_and_loses_nobody() {
    let prompts: Vec<Vec<u32>> = (0..8)
        .map(|number| (0..56).map(|at| if at < 48 { at } else { (at + 7 * number) % 96 }).collect())
        .collect();
    let (calm, _) = engine("");
    let alone: Vec<Vec<u32>> =
        prompts.iter().flat_map(|prompt| tokens_behind(&calm, vec![prompt.clone()])).collect();
    let mut preempted = 0;
    for mode in [SpeculationMode::Off, SpeculationMode::Lookup] {
        for kind in ["kernel_compile:op=decode,at=during,nth=3", "numeric:op=decode,at=after"] {
            for step in [4, 8, 16] {
                let drill = format!("{kind},step={step},count=1");
                let (struck, metrics) = speculating(&drill, mode, None);
                assert_eq!(tokens_behind(&struck, prompts.clone()), alone, "{mode:?} {drill}");
                let counts = metrics.counts();
                assert_eq!((counts.failed, counts.finished), (0, 8), "{mode:?} {drill}");
                preempted += counts.preemptions;
            }
        }
    }
    assert!(preempted > 0);
}

/// The draft model has pages for a few sequences only: those that stay known would leave none for later ones.
#[test]
fn sequences_that_end_or_fail_alone_are_forgotten_by_what_proposes_tokens() {
    let folder = fixture("llama-tiny");
    // The first sequence ends with its token, the second fails, the third goes on.
    let runner = Runner::open(footing("numeric:op=decode,at=after,step=1,count=1"), &folder);
    let runner = Arc::new(runner.unwrap());
    let (draft, _) =
        speculate::open(&runner, SpeculationMode::Draft, Some(&folder), 8, 128).unwrap();
    let (capacity, _) = EngineCapacity::fit(&runner, &LIMITS).unwrap();
    let metrics: Arc<Metrics> = Arc::default();
    let activity = ActivityLog::new(
        surefoot::journal::Journal::off(),
        Arc::clone(&metrics),
        Arc::clone(&runner),
    );
    let decoder = Decoder::new(
        Arc::clone(&runner),
        Vec::new(),
        capacity,
        Arc::new(PassBudget::new(capacity.activation_tokens)),
        Arc::clone(&metrics),
        Arc::new(activity),
    );
    let mut live = LiveSequences::speculating(draft);
    let (sequences, _heard): (Vec<_>, Vec<_>) = [1, 9, 9]
        .into_iter()
        .enumerate()
        .map(|(number, most)| {
            Sequence::new(generation(prompt(number), most), None, Arc::clone(&metrics))
        })
        .unzip();
    live.admit(sequences);
    let texts: Vec<(u64, Vec<u32>)> =
        live.sequences.iter().map(|one| (one.key, one.tokens().to_vec())).collect();
    let candidates: Vec<Candidate<'_>> =
        texts.iter().map(|(key, tokens)| Candidate { key: *key, tokens, most: 1 }).collect();
    assert!(live.speculator.propose(&candidates).iter().all(|tokens| tokens.len() == 1));
    assert_eq!(live.speculator.sequences(), 3);
    let blueprint = runner.blueprint();
    let limits = capacity.page_limits(blueprint);
    let mut slot = CacheSlot::new(PagedCache::new(pages::layout(blueprint), limits));
    let share = |at: usize| Share {
        at,
        upto: texts[at].1.len(),
        is_whole: true,
        is_prompt: true,
        proposed: Vec::new(),
    };
    decoder.try_each_alone(&mut live, &mut slot, &Pass::Tokens((0..3).map(share).collect()));
    assert_eq!((metrics.counts().finished, metrics.counts().failed), (1, 1));
    assert_eq!(live.sequences.iter().map(|one| one.key).collect::<Vec<_>>(), [texts[2].0]);
    assert_eq!(live.speculator.sequences(), 1);
}
