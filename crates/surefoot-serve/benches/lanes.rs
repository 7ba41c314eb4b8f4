//! Many callers on one device: bare Burn threads against lanes.
//!
//! `cargo bench --workspace --bench lanes -- [--device cpu|gpu] [--model mlp|conv|block]
//! [--seconds S] [--rounds N]`. All rates are of one run, in turns: for each number of callers, bare and on
//! lanes, round after round; the median of the rounds. The callers are the same threads in both, so
//! that both find their streams warm. The cores that each took are beside its rate: on a machine with
//! other work they tell how much of it there was. A minute and a half.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use surefoot::device::{DeviceName, OpenDevice, open};
use surefoot_serve::lanes::{Lanes, MOST_LANES};
use testkit::networks::Network;

const CALLERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

struct Options {
    device: Arc<OpenDevice>,
    model: String,
    /// How long one rate is measured.
    window: Duration,
    /// How often each is. Where rates vary by a fifth, as on a software GPU, it takes many.
    rounds: usize,
}

/// A network and a device, with what every caller should get.
struct Scene {
    device: Arc<OpenDevice>,
    network: Network,
    inputs: Vec<Vec<f32>>,
    goldens: Vec<Vec<f32>>,
}

impl Scene {
    /// One forward of `caller`. The result is looked at, so that nobody is fast by being wrong. The
    /// same code for both sides: two copies of it differ by more than a lane costs.
    #[inline(never)]
    fn forward(&self, caller: usize) {
        let result = self.network.forward(&self.inputs[caller], self.device.burn());
        assert_eq!(result, self.goldens[caller], "caller {caller} got another's numbers");
    }
}

/// The callers: threads that live as long as the benchmark, so that bare forwards and those on lanes
/// find the same streams, warm.
struct Crew(Vec<mpsc::Sender<Box<dyn FnOnce() + Send>>>);

/// What callers do over and over, told who they are.
type Work = Arc<dyn Fn(usize) + Send + Sync>;

impl Crew {
    fn new() -> Self {
        let hire = |_| {
            let (jobs, inbox) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
            std::thread::spawn(move || inbox.into_iter().for_each(|job| job()));
            jobs
        };
        Self((0..64).map(hire).collect())
    }

    /// What `callers` callers reach, after a start that is not counted.
    fn rate(&self, callers: usize, window: Duration, work: &Work) -> Rate {
        let (stop, counting) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (done, finished) = (Arc::new(AtomicU64::new(0)), Arc::new(Barrier::new(callers + 1)));
        for (caller, jobs) in self.0[..callers].iter().enumerate() {
            let (stop, counting, work) = (stop.clone(), counting.clone(), work.clone());
            let (done, finished) = (done.clone(), finished.clone());
            let job = move || {
                while !stop.load(Relaxed) {
                    work(caller);
                    if counting.load(Relaxed) {
                        done.fetch_add(1, Relaxed);
                    }
                }
                finished.wait();
            };
            jobs.send(Box::new(job)).expect("the crew lives");
        }
        std::thread::sleep(window / 4);
        counting.store(true, Relaxed);
        let (started, before, cpu) = (Instant::now(), done.load(Relaxed), cpu_seconds());
        std::thread::sleep(window);
        let seconds = started.elapsed().as_secs_f64();
        let (forwards, cpu) = (done.load(Relaxed) - before, cpu_seconds() - cpu);
        stop.store(true, Relaxed);
        finished.wait();
        Rate { forwards: forwards as f64 / seconds, cores: cpu / seconds }
    }
}

#[derive(Clone, Copy)]
struct Rate {
    /// Forwards a second.
    forwards: f64,
    /// How many processor cores that took.
    cores: f64,
}

/// The rates of all rounds.
struct Rates(Vec<Rate>);

impl Rates {
    fn median(&self) -> f64 {
        median(self.0.iter().map(|rate| rate.forwards).collect())
    }
}

/// Median, least and most, and the cores that the median took.
impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let forwards = self.0.iter().map(|rate| rate.forwards);
        let least = forwards.clone().fold(f64::INFINITY, f64::min);
        let most = forwards.fold(0.0, f64::max);
        let cores = median(self.0.iter().map(|rate| rate.cores).collect());
        let rate = format!("{:.0} ({least:.0} to {most:.0})", self.median());
        write!(f, "{rate:<26} {cores:<6.2}")
    }
}

/// Processor time of this process, where the system tells; its ticks are hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |nth| after_name.split_whitespace().nth(nth).and_then(|t| t.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let options = options();
    let scene = Arc::new(scene(&options));
    let lanes = Arc::new(Lanes::new(Arc::clone(&scene.device), MOST_LANES));
    let crew = Crew::new();
    let on_lanes: Work = {
        let (scene, lanes) = (scene.clone(), lanes.clone());
        Arc::new(move |caller| {
            let scene = Arc::clone(&scene);
            on_a_lane(&lanes, move || scene.forward(caller));
        })
    };
    let bare: Work = {
        let scene = scene.clone();
        Arc::new(move |caller| scene.forward(caller))
    };
    println!("{} on {}: {}", options.model, scene.device.name(), scene.device.info.label);
    settle(&lanes, &crew, options.window, &on_lanes);

    // Bare, and on lanes.
    let sides = [&bare, &on_lanes];
    let mut rates = [vec![Vec::new(); CALLERS.len()], vec![Vec::new(); CALLERS.len()]];
    for round in 0..options.rounds {
        for (nth, callers) in CALLERS.into_iter().enumerate() {
            // Whoever comes second finds the machine as the first left it: take turns.
            for side in [round % 2, (round + 1) % 2] {
                rates[side][nth].push(crew.rate(callers, options.window, sides[side]));
            }
        }
    }
    let [bare, laned] = rates.map(|side| side.into_iter().map(Rates).collect::<Vec<_>>());
    let best_of = |side: &[Rates]| side.iter().map(Rates::median).fold(0.0, f64::max);
    let (best_bare, best) = (best_of(&bare), best_of(&bare).max(best_of(&laned)));
    println!("\n         {:<33} lanes", "bare");
    println!("callers  {0:<26} cores  {0:<26} cores  lanes / best bare", "/s");
    for (nth, callers) in CALLERS.into_iter().enumerate() {
        let (bare, laned) = (&bare[nth], &laned[nth]);
        println!("{callers:<8} {bare} {laned} {:.3}", laned.median() / best_bare);
    }
    println!("\n{} lanes active of {MOST_LANES}", lanes.statistics().active);
    for (nth, callers) in CALLERS.into_iter().enumerate() {
        if [8, 16, 64].contains(&callers) {
            verdict(
                &format!("{callers} callers / best bare rate"),
                laned[nth].median() / best_bare,
                0.9,
            );
        }
    }
    let bound = (8.0 * laned[0].median()).min(best);
    verdict("8 callers / min(8 x one lane, saturated)", laned[3].median() / bound, 0.9);
    cost_of_one_lane(&scene, options.window);
    inside_at_once(&scene, &crew, options.window);
}

fn on_a_lane(lanes: &Lanes<()>, forward: impl FnOnce() + Send + 'static) {
    let forward = move |_: &_| {
        forward();
        Ok::<_, std::convert::Infallible>(())
    };
    match lanes.run(&(), forward) {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// Lets the lanes find out how many of them pay.
fn settle(lanes: &Lanes<()>, crew: &Crew, window: Duration, work: &Work) {
    let started = Instant::now();
    let patience = (40 * window).max(Duration::from_secs(10));
    while !lanes.has_settled() && started.elapsed() < patience {
        crew.rate(64, window, work);
    }
    let found = if lanes.has_settled() { "found" } else { "not settled" };
    let (active, took) = (lanes.statistics().active, started.elapsed().as_secs_f64());
    println!("{found}: {active} lanes pay, after {took:.1} s");
}

/// One caller, some forwards bare and some on a lane, in turns; the median of each, so that forwards
/// during which the thread had to wait for the processor don't count. The first of each turn finds
/// the device at work for another stream, whichever it is, and doesn't count either. The caller is a
/// thread that did not load the model, as callers are. Where the numbers of a stream happen to lie in
/// memory can cost more than the lane, so there are many callers, one after the other, each with a lane
/// of its own.
fn cost_of_one_lane(scene: &Arc<Scene>, window: Duration) {
    const CALLERS: usize = 15;
    let caller = || {
        let lanes = Lanes::new(Arc::clone(&scene.device), MOST_LANES);
        let turns = || turns(scene, &lanes, window);
        std::thread::scope(|scope| scope.spawn(turns).join()).expect("the caller lives")
    };
    let callers: Vec<[f64; 2]> = (0..CALLERS).map(|_| caller()).collect();
    let mut ratios: Vec<f64> = callers.iter().map(|[bare, laned]| laned / bare).collect();
    ratios.sort_by(f64::total_cmp);
    let side = |nth: usize| 1e6 * median(callers.iter().map(|times| times[nth]).collect());
    let ratio = ratios[ratios.len() / 2];
    let said = if ratio <= 1.02 { "ok" } else { "MISSED" };
    println!("{:<45} {ratio:>7.4}  (at most 1.02) {said}", "one caller on a lane / bare, time");
    let (low, high) = (ratios[CALLERS / 4], ratios[CALLERS - 1 - CALLERS / 4]);
    println!("  {:.1} and {:.1} us; half of the callers {low:.3} to {high:.3}", side(1), side(0));
}

/// How long a forward takes bare and on a lane, in seconds.
fn turns(scene: &Arc<Scene>, lanes: &Lanes<()>, window: Duration) -> [f64; 2] {
    const TURN: usize = 8;
    let mut times = [Vec::new(), Vec::new()];
    let until = Instant::now() + window;
    while Instant::now() < until || times[0].len() < 20 {
        for (side, times) in times.iter_mut().enumerate() {
            for nth in 0..TURN {
                let started = Instant::now();
                match side {
                    0 => scene.forward(0),
                    _ => {
                        let scene = Arc::clone(scene);
                        on_a_lane(lanes, move || scene.forward(0));
                    }
                }
                if nth > 0 {
                    times.push(started.elapsed().as_secs_f64());
                }
            }
        }
    }
    times.map(median)
}

/// No lock is held while a model runs: as many threads are inside of it as there are lanes.
fn inside_at_once(scene: &Arc<Scene>, crew: &Crew, window: Duration) {
    for count in [1, 2, 4, 8] {
        let lanes = Lanes::fixed(Arc::clone(&scene.device), count);
        let inside = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let work: Work = {
            let (scene, inside) = (scene.clone(), inside.clone());
            Arc::new(move |caller| {
                let (scene, inside) = (Arc::clone(&scene), Arc::clone(&inside));
                on_a_lane(&lanes, move || {
                    let [now, greatest] = &*inside;
                    greatest.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                    scene.forward(caller);
                    now.fetch_sub(1, Relaxed);
                });
            })
        };
        crew.rate(16, window, &work);
        let greatest = inside[1].load(Relaxed);
        let said = if greatest == count { "ok" } else { "MISSED" };
        println!("{:<45} {greatest:>7}  (lanes: {count}) {said}", "threads inside forward at once");
    }
}

fn verdict(what: &str, share: f64, target: f64) {
    let said = if share >= target { "ok" } else { "MISSED" };
    println!("{what:<45} {share:>7.3}  (at least {target}) {said}");
}

fn scene(options: &Options) -> Scene {
    let device = Arc::clone(&options.device);
    let network = match options.model.as_str() {
        "mlp" => Network::mlp(device.burn()),
        "conv" => Network::conv(device.burn()),
        "block" => Network::block(device.burn()),
        other => panic!("no model '{other}': mlp, conv or block"),
    };
    let inputs: Vec<_> = (0..64).map(|caller| network.input(caller)).collect();
    let goldens = inputs.iter().map(|input| network.forward(input, device.burn())).collect();
    Scene { device, network, inputs, goldens }
}

fn options() -> Options {
    let mut device = DeviceName::CPU;
    let (mut model, mut seconds, mut rounds) = ("mlp".to_owned(), 0.5, 9);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            // Cargo says that it is a bench.
            "--bench" => {}
            "--device" => device = value().parse().unwrap_or_else(|error| panic!("{error}")),
            "--model" => model = value(),
            "--seconds" => seconds = value().parse().expect("--seconds takes a number"),
            "--rounds" => rounds = value().parse().expect("--rounds takes a number"),
            other => panic!("no option '{other}': --device, --model, --seconds, --rounds"),
        }
    }
    let device = open(device).unwrap_or_else(|fault| panic!("{fault}"));
    Options { device, model, window: Duration::from_secs_f64(seconds), rounds }
}
