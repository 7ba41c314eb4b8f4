//! What batching reaches, as ratios of one run:
//!
//! - 64 clients through the engine, of the best rate that any fixed batch reaches bare;
//! - the p99 of single requests at half that rate, of the time of one such batch;
//! - the same rate for sequences that are decoded.
//!
//! `cargo bench --workspace --bench batcher -- --device cpu|gpu [--seconds 2] [--rounds 3]
//! [--only embed|decode] [--in-flight N]`, where N batches of texts run at once
#![allow(clippy::unwrap_used, reason = "a bench that can't go on has failed")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use surefoot::Footing;
use surefoot::journal::Journal;
use surefoot_models::Model;
use surefoot_models::embed::{self, Pooling};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::tokens::{self, Request};
use surefoot_models::stream::needs::Work;
use surefoot_serve::engine::{
    Engine, EngineLimits, EngineSettings, Generation, GenerationEvent, LogitRules,
};
use surefoot_serve::metrics::Metrics;
use testkit::model_folders;

const CLIENTS: usize = 64;
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const TEXT: usize = 32;
const PROMPT: usize = 16;
const NEW_TOKENS: usize = 32;
const VOCAB: usize = 1000;

struct Options {
    device: String,
    seconds: f64,
    rounds: usize,
    only: Option<String>,
    in_flight: Option<usize>,
}

fn options() -> Options {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        arguments.iter().position(|argument| argument == name).map(|at| arguments[at + 1].clone())
    };
    Options {
        device: value("--device").unwrap_or_else(|| "cpu".to_owned()),
        seconds: value("--seconds").map_or(2.0, |text| text.parse().unwrap()),
        rounds: value("--rounds").map_or(3, |text| text.parse().unwrap()),
        only: value("--only"),
        in_flight: value("--in-flight").map(|text| text.parse().unwrap()),
    }
}

fn main() {
    let options = options();
    let footing = || {
        let selector = options.device.parse().unwrap();
        Arc::new(Footing::builder().devices(selector).build().unwrap())
    };
    println!("device {}, {CLIENTS} clients, {} rounds", options.device, options.rounds);
    let wanted = |part: &str| options.only.as_deref().is_none_or(|only| only == part);
    if wanted("embed") {
        encode(&options, footing());
    }
    if wanted("decode") {
        decode(&options, footing());
    }
}

fn text(number: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| ((at * 31 + number * 17 + 7) % VOCAB) as u32).collect()
}

fn engine(
    folder: &Path,
    footing: Arc<Footing>,
    batches_in_flight: usize,
    metrics: &Arc<Metrics>,
) -> Arc<Engine> {
    let settings = EngineSettings {
        limits: EngineLimits {
            sequences: CLIENTS,
            context: None,
            texts: CLIENTS,
            text_tokens: None,
            pass_tokens: 8192,
            queue: 4096,
            patience: Duration::from_secs(1),
            batches_in_flight,
        },
        pooling: Pooling::Mean,
        journal: Journal::off(),
        weights: Default::default(),
        adapter: None,
        adapters: Vec::new(),
        speculation: Default::default(),
        draft: None,
    };
    let engine = Engine::start(folder, footing, settings, Arc::clone(metrics)).unwrap();
    engine.warm_up(|_, _| ()).unwrap();
    Arc::new(engine)
}

/// How many times a second `work` is done, times `each`.
fn rate(seconds: f64, each: usize, mut work: impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed().as_secs_f64() < seconds {
        work();
        count += each;
    }
    count as f64 / begun.elapsed().as_secs_f64()
}

/// What has come to all clients while it counted.
#[derive(Default)]
struct Tally {
    counts: AtomicBool,
    came: AtomicUsize,
}

impl Tally {
    fn one_came(&self) {
        if self.counts.load(Ordering::Relaxed) {
            self.came.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What `CLIENTS` clients get a second, each asking again as soon as it is answered; `work` asks
/// once and tells of each part of its answer when it comes. They are tasks, as in the server: a
/// thread for each would cost the processor more than the model does.
fn clients<W: Future<Output = ()> + Send>(
    seconds: f64,
    work: impl Fn(usize, Arc<Tally>) -> W + Clone + Send + Sync + 'static,
) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (stop, tally, work) = (Arc::clone(&stop), Arc::clone(&tally), work.clone());
            runtime.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    work(client, Arc::clone(&tally)).await;
                }
            })
        })
        .collect();
    // The first answers come while batches still grow.
    std::thread::sleep(Duration::from_secs_f64(seconds / 4.0));
    tally.counts.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    tally.counts.store(false, Ordering::Relaxed);
    let rate = tally.came.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    rate
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn encode(options: &Options, footing: Arc<Footing>) {
    let folder = tempfile::tempdir().unwrap();
    model_folders::bert(folder.path(), VOCAB);
    let device = footing.device().unwrap();
    let work = Work { batch: CLIENTS, prompt: TEXT, new_tokens: 0, want: embed::WANT };
    let model = Model::open(folder.path(), &work, None, device.burn()).unwrap();
    let batch = |size: usize| (0..size).map(|number| text(number, TEXT)).collect::<Vec<_>>();
    let usual = if device.is_asynchronous() { 2 } else { 1 };
    let metrics = Arc::new(Metrics::default());
    let engine = engine(folder.path(), footing, options.in_flight.unwrap_or(usual), &metrics);
    // Kernels are made and memory is taken before anything is measured.
    for size in BATCHES {
        model.embed(&batch(size), Pooling::Mean).unwrap();
    }
    let mut fixed = Fixed::default();
    let mut rates = Vec::new();
    let before = metrics.counts();
    for _ in 0..options.rounds {
        fixed.measure(|size| {
            let texts = batch(size);
            rate(options.seconds / 2.0, size, || {
                model.embed(&texts, Pooling::Mean).unwrap();
            })
        });
        let engine = Arc::clone(&engine);
        rates.push(clients(options.seconds, move |client, tally| {
            let heard = engine.embed(vec![text(client, TEXT)], None, None).unwrap();
            async move {
                for heard in heard {
                    heard.await.unwrap().unwrap();
                    tally.one_came();
                }
            }
        }));
    }
    let (size, best) = fixed.best();
    let served = median(rates);
    let one_batch = size as f64 / best;
    let done = metrics.counts().since(&before);
    println!("embed: {:.1} texts a batch", done.rows as f64 / done.batches.max(1) as f64);
    let p99: Vec<f64> = (0..options.rounds)
        .map(|_| half_load(&engine, best / 2.0, options.seconds * 2.0))
        .collect();
    let p99 = median(p99);
    println!(
        "embed: {CLIENTS} clients {served:.0} texts/s, {:.0} % of the best fixed batch (85 % wanted)",
        served / best * 100.0
    );
    println!(
        "embed: p99 at half load {:.1} ms, {:.2} times one batch of {size} (3 allowed)",
        p99 * 1e3,
        p99 / one_batch
    );
}

/// The rates of fixed batches, over all rounds.
#[derive(Default)]
struct Fixed([Vec<f64>; BATCHES.len()]);

impl Fixed {
    fn measure(&mut self, rate: impl Fn(usize) -> f64) {
        for (rates, size) in self.0.iter_mut().zip(BATCHES) {
            rates.push(rate(size));
        }
    }

    /// The best rate, and the largest batch that is within 3 % of it: that is the batch which a
    /// server without a batcher of its own would be set to.
    fn best(&self) -> (usize, f64) {
        let rates: Vec<f64> = self.0.iter().map(|rates| median(rates.clone())).collect();
        let told: Vec<String> =
            BATCHES.iter().zip(&rates).map(|(size, rate)| format!("{size}: {rate:.0}/s")).collect();
        println!("fixed batches {}", told.join(", "));
        let best = rates.iter().copied().fold(0.0, f64::max);
        let near = rates.iter().rposition(|rate| *rate >= 0.97 * best).unwrap_or(0);
        (BATCHES[near], best)
    }
}

/// The p99 of requests that come by chance, `rate` a second, from when each should have come.
fn half_load(engine: &Engine, rate: f64, seconds: f64) -> f64 {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let mut chance = || random.f64().max(1e-12);
    let begun = Instant::now();
    let mut due = 0.0;
    let mut answers = Vec::new();
    while due < seconds {
        due += -chance().ln() / rate;
        let at = begun + Duration::from_secs_f64(due);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let heard = engine.embed(vec![text(answers.len(), TEXT)], None, None).unwrap().remove(0);
        answers.push(runtime.spawn(async move {
            heard.await.unwrap().unwrap();
            at.elapsed().as_secs_f64()
        }));
    }
    let mut times: Vec<f64> =
        answers.into_iter().map(|answer| runtime.block_on(answer).unwrap()).collect();
    times.sort_by(f64::total_cmp);
    times[(times.len() * 99).div_ceil(100) - 1]
}

fn decode(options: &Options, footing: Arc<Footing>) {
    let folder = tempfile::tempdir().unwrap();
    model_folders::gpt2(folder.path(), VOCAB);
    let device = footing.device().unwrap();
    let work = Work { batch: CLIENTS, prompt: PROMPT, new_tokens: NEW_TOKENS, want: tokens::WANT };
    let model = Model::open(folder.path(), &work, None, device.burn()).unwrap();
    let request = |size: usize| Request {
        prompts: (0..size).map(|number| text(number, PROMPT)).collect(),
        max_tokens: NEW_TOKENS,
        ends: Vec::new(),
        sampling: Sampling::GREEDY,
    };
    let engine = engine(folder.path(), footing, 1, &Arc::default());
    let generate = |size: usize| {
        model.generate(&request(size), |_, _| ControlFlow::Continue(())).unwrap();
    };
    for size in BATCHES {
        generate(size);
    }
    let mut fixed = Fixed::default();
    let mut rates = Vec::new();
    for _ in 0..options.rounds {
        fixed.measure(|size| rate(options.seconds / 2.0, size * NEW_TOKENS, || generate(size)));
        let engine = Arc::clone(&engine);
        rates.push(clients(options.seconds, move |client, tally| {
            let generation = Generation {
                adapter: None,
                prompt: text(client, PROMPT),
                max_tokens: NEW_TOKENS,
                sampling: Sampling::GREEDY,
                rules: LogitRules::default(),
                constraint: None,
                logprobs: None,
                rates_prompt: false,
            };
            let mut heard = engine.generate(vec![generation], None).unwrap().remove(0);
            async move {
                loop {
                    match heard.recv().await.unwrap() {
                        GenerationEvent::Prompt(_) => {}
                        GenerationEvent::Token { .. } => tally.one_came(),
                        GenerationEvent::Ended(_) => return,
                        GenerationEvent::Failed(error) => panic!("{error}"),
                    }
                }
            }
        }));
    }
    let (size, best) = fixed.best();
    let served = median(rates);
    println!(
        "decode: {CLIENTS} clients {served:.0} tokens/s, {:.0} % of the best fixed batch, {size} \
         (85 % wanted)",
        served / best * 100.0
    );
}
