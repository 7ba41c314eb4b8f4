//! Measures variants in turns.
//!
//! For each workload every variant is prepared and warmed up, which is timed separately. Then come
//! rounds: in each, every variant gives one sample, in an order that rotates from round to round.
//! A workload ends when its time is used up, but not before a minimum number of rounds.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use surefoot::Fault;
use surefoot::device::{DeviceName, OpenDevice};
use surefoot::fault::{catch, from_panic};
use surefoot::place::{Dtype, DtypeSupport, probe_dtype};

use surefoot_ops::{Launches, count_launches};

use crate::machine::Machine;
use crate::report::{
    BenchReport, Interval, Measured, Peak, Ratio, Status, Throughput, VERSION, WarmUp,
};
use crate::statistics::{self, CONFIDENCE, Pairing};
use crate::workload::{Amount, Job, Workload};
use crate::{peak, verdict};

/// Shorter samples would measure mostly the clock: short work is repeated until a sample takes as long.
const SAMPLE: Duration = Duration::from_millis(5);
const MOST_REPEATS: f64 = 256.0;
const MOST_ROUNDS: usize = 61;
/// The warm-up ends when two runs differ by less than this share, or after [`WARM_TIME`].
const AGREE: f64 = 0.1;
const WARM_TIME: Duration = Duration::from_millis(400);

/// What to measure.
#[derive(Clone)]
pub struct Settings {
    /// The devices.
    pub devices: Vec<Arc<OpenDevice>>,
    /// The precisions.
    pub precisions: Vec<Dtype>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// The time for one workload, all its variants included.
    pub time_each: Duration,
    /// The minimum number of rounds, whatever they take.
    pub least_rounds: usize,
    /// Whether this is a short measurement.
    pub quick: bool,
}

impl Settings {
    /// A full measurement of the built-in workloads.
    pub fn new(devices: Vec<Arc<OpenDevice>>) -> Self {
        Self {
            devices,
            precisions: vec![Dtype::F32, Dtype::F16, Dtype::BF16],
            workloads: Workload::ALL.to_vec(),
            time_each: Duration::from_secs(10),
            least_rounds: 5,
            quick: false,
        }
    }

    /// A short measurement: the same workloads, fewer rounds.
    #[must_use]
    pub fn quick(mut self) -> Self {
        self.time_each = Duration::from_millis(600);
        self.least_rounds = 2;
        self.quick = true;
        self
    }
}

/// The progress of a run.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    /// The peak rates of a device are measured.
    Peak {
        /// The device.
        device: DeviceName,
        /// The precision.
        precision: Dtype,
    },
    /// A workload starts.
    Begun {
        /// Its name.
        workload: &'a str,
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        of: usize,
    },
    /// A variant warms up.
    WarmingUp {
        /// Its workload.
        workload: &'a str,
        /// The device.
        device: DeviceName,
        /// The precision.
        precision: Dtype,
    },
    /// A round is done.
    Round {
        /// The workload.
        workload: &'a str,
        /// The share of its time that is used.
        share: f64,
    },
    /// A variant is done.
    Done(&'a Measured),
}

/// One workload on one device in one precision, while it is measured.
struct Variant {
    device: Arc<OpenDevice>,
    precision: Dtype,
    job: Option<Box<dyn Job>>,
    amount: Amount,
    what: String,
    warm_up: WarmUp,
    repeats: u32,
    times: Vec<f64>,
    memory: u64,
    launches: Launches,
    status: Status,
    why: Option<String>,
}

/// Measures everything and gives the report with its verdicts.
pub fn run(settings: &Settings, tell: &mut dyn FnMut(&Progress<'_>)) -> BenchReport {
    let started = Instant::now();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut peaks = measure_peaks(settings, tell);
    let (mut results, mut amounts): (Vec<Measured>, Vec<Amount>) = Default::default();
    for (number, workload) in settings.workloads.iter().enumerate() {
        let (number, of) = (number + 1, settings.workloads.len());
        tell(&Progress::Begun { workload: workload.name(), number, of });
        let variants = measure(settings, workload, tell);
        raise_peaks(&mut peaks, &variants);
        amounts.extend(variants.iter().map(|variant| variant.amount.clone()));
        let finished = finish(workload, variants);
        finished.iter().for_each(|measured| tell(&Progress::Done(measured)));
        results.extend(finished);
    }
    // The best rate of each device is known only now.
    for (result, amount) in results.iter_mut().zip(&amounts) {
        result.share_of_peak = share_of_peak(result, amount, &peaks);
    }
    let mut report = BenchReport {
        surefoot_bench: VERSION,
        program: format!("surefoot {}", env!("CARGO_PKG_VERSION")),
        time,
        seconds: started.elapsed().as_secs_f64(),
        quick: settings.quick,
        machine: Machine::here(settings.devices.iter().map(AsRef::as_ref)),
        confidence: CONFIDENCE,
        peaks,
        results,
        verdicts: Vec::new(),
        summary: String::new(),
    };
    report.verdicts = verdict::all(&report);
    report.summary = verdict::summary(&report);
    report
}

/// Why a variant can't be measured at all.
fn why_not(workload: &Workload, device: &OpenDevice, precision: Dtype) -> Option<String> {
    if let Some(why) = workload.why_not(device) {
        return Some(why.to_owned());
    }
    match probe_dtype(device, precision) {
        DtypeSupport::Works => None,
        support => Some(format!("{precision} is {support} on this device")),
    }
}

fn measure_peaks(settings: &Settings, tell: &mut dyn FnMut(&Progress<'_>)) -> Vec<Peak> {
    let longest = Duration::from_millis(if settings.quick { 120 } else { 500 });
    let mut peaks = Vec::new();
    for device in &settings.devices {
        for &precision in &settings.precisions {
            if probe_dtype(device, precision) == DtypeSupport::Works {
                tell(&Progress::Peak { device: device.name(), precision });
                peaks.push(peak::measure(device, precision, longest));
            }
        }
    }
    peaks
}

fn measure(
    settings: &Settings,
    workload: &Workload,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Vec<Variant> {
    let started = Instant::now();
    let mut variants = Vec::new();
    for device in &settings.devices {
        for &precision in &settings.precisions {
            tell(&Progress::WarmingUp {
                workload: workload.name(),
                device: device.name(),
                precision,
            });
            variants.push(Variant::prepare(workload, device, precision, settings.time_each));
        }
    }
    // The warm-up has used some of the time; at least half is left for the rounds, however slow the
    // compiler was.
    let left = settings.time_each.saturating_sub(started.elapsed()).max(settings.time_each / 2);
    let begun = Instant::now();
    let count = variants.len().max(1);
    for round in 0..MOST_ROUNDS {
        let used = begun.elapsed().as_secs_f64() / left.as_secs_f64();
        if used >= 1.0 && round >= settings.least_rounds {
            break;
        }
        tell(&Progress::Round { workload: workload.name(), share: used.min(1.0) });
        for place in 0..count {
            if let Some(variant) = variants.get_mut((place + round) % count) {
                variant.sample();
            }
        }
    }
    variants
}

impl Variant {
    fn prepare(
        workload: &Workload,
        device: &Arc<OpenDevice>,
        precision: Dtype,
        time_each: Duration,
    ) -> Self {
        let mut variant = Self {
            device: Arc::clone(device),
            precision,
            job: None,
            amount: Amount::default(),
            what: String::new(),
            warm_up: WarmUp::default(),
            repeats: 1,
            times: Vec::new(),
            memory: 0,
            launches: Launches::new(),
            status: Status::Measured,
            why: None,
        };
        if let Some(why) = why_not(workload, device, precision) {
            (variant.status, variant.why) = (Status::Skipped, Some(why));
            return variant;
        }
        let before = device.memory_in_use();
        let outcome = catch(|| {
            let started = Instant::now();
            let mut job = workload.prepare(device, precision)?;
            let (warm_up, last) = warm_up(job.as_mut(), started, time_each)?;
            // Once more for the launches, unless it is too slow to be measured at all.
            let launches = match is_too_slow(last, time_each) {
                true => Launches::new(),
                false => {
                    let (ran, launches) = count_launches(|| job.run(1));
                    ran?;
                    launches
                }
            };
            Ok::<_, Fault>((job, warm_up, last, launches))
        });
        match outcome.unwrap_or_else(|record| Err(from_panic(workload.name(), &record))) {
            Ok((_, warm_up, last, _)) if is_too_slow(last, time_each) => {
                variant.warm_up = warm_up;
                variant.status = Status::Skipped;
                variant.why = Some(format!("one run takes {last:.0} s: too slow to measure here"));
            }
            Ok((job, warm_up, last, launches)) => {
                variant.memory = device.memory_in_use().saturating_sub(before);
                variant.warm_up = warm_up;
                variant.launches = launches;
                variant.amount = job.amount();
                variant.what = job.what();
                if job.can_repeat() {
                    let fit = (SAMPLE.as_secs_f64() / last).ceil();
                    variant.repeats = fit.clamp(1.0, MOST_REPEATS) as u32;
                }
                variant.job = Some(job);
            }
            Err(fault) => variant.fail(&fault),
        }
        variant
    }

    fn fail(&mut self, fault: &Fault) {
        self.status = Status::Failed;
        self.why = Some(format!("{}: {}", fault.kind, fault.root_cause()));
        self.job = None;
    }

    /// Takes one sample, unless the variant has failed before.
    fn sample(&mut self) {
        let (repeats, Some(job)) = (self.repeats, &mut self.job) else { return };
        let started = Instant::now();
        let outcome = catch(|| job.run(repeats));
        let took = started.elapsed().as_nanos() as f64 / f64::from(repeats);
        match outcome.unwrap_or_else(|record| Err(from_panic("bench", &record))) {
            Ok(()) => self.times.push(took),
            Err(fault) => self.fail(&fault),
        }
    }
}

/// Whether a few rounds of such runs would take far longer than the time for the workload.
fn is_too_slow(seconds: f64, time_each: Duration) -> bool {
    seconds > 2.0 * time_each.as_secs_f64().max(1.0)
}

/// Runs until two runs agree; gives what that took and the seconds of the last run. The first run
/// compiles kernels, so it doesn't count as too slow.
fn warm_up(
    job: &mut dyn Job,
    started: Instant,
    time_each: Duration,
) -> Result<(WarmUp, f64), Fault> {
    let mut times: Vec<f64> = Vec::new();
    loop {
        let begun = Instant::now();
        job.run(1)?;
        times.push(begun.elapsed().as_secs_f64());
        let agree = match times[..] {
            [.., before, last] => (before - last).abs() < AGREE * last,
            _ => false,
        };
        let spent: f64 = times.iter().skip(1).sum();
        let slow =
            times.len() >= 2 && times.last().is_some_and(|last| is_too_slow(*last, time_each));
        if times.len() >= 2 && (agree || slow || spent >= WARM_TIME.as_secs_f64()) {
            break;
        }
    }
    let last = times.last().copied().unwrap_or_default().max(1e-9);
    let warm_up = WarmUp {
        first_ns: times.first().copied().unwrap_or_default() * 1e9,
        total_ns: started.elapsed().as_nanos() as f64,
        runs: times.len() as u32,
    };
    Ok((warm_up, last))
}

/// A workload may reach a higher rate than the one measured as the peak.
fn raise_peaks(peaks: &mut [Peak], variants: &[Variant]) {
    for variant in variants {
        let fastest = variant.times.iter().copied().fold(f64::INFINITY, f64::min);
        let own = |peak: &&mut Peak| {
            (peak.device, peak.precision) == (variant.device.name(), variant.precision)
        };
        let Some(peak) = peaks.iter_mut().find(own) else { continue };
        let raise = |best: &mut Option<f64>, done: Option<f64>| {
            if let Some(reached) = done.map(|done| done / fastest * 1e9)
                && reached.is_finite()
                && best.is_none_or(|known| reached > known)
            {
                *best = Some(reached);
            }
        };
        raise(&mut peak.flops, variant.amount.flops);
        raise(&mut peak.bandwidth, variant.amount.bytes);
    }
}

/// The share of the device's best rate: of matrix products if they are the limit, else of memory.
fn share_of_peak(result: &Measured, amount: &Amount, peaks: &[Peak]) -> Option<f64> {
    if !result.is_measured() {
        return None;
    }
    let own = |peak: &&Peak| (peak.device, peak.precision) == (result.device, result.precision);
    let peak = peaks.iter().find(own)?;
    let share =
        |done: Option<f64>, best: Option<f64>| Some(done? / (result.median_ns / 1e9) / best?);
    share(amount.flops, peak.flops).or_else(|| share(amount.bytes, peak.bandwidth))
}

fn finish(workload: &Workload, variants: Vec<Variant>) -> Vec<Measured> {
    let reference = variants
        .iter()
        .find(|variant| {
            let is_cpu = variant.device.name() == DeviceName::CPU;
            is_cpu && variant.precision == Dtype::F32 && variant.status == Status::Measured
        })
        .map(|variant| variant.times.clone());
    let to_measured = |variant: Variant| {
        let median = statistics::median(&variant.times);
        let (low, high) = statistics::median_interval(&variant.times);
        let seconds = median / 1e9;
        let measured = variant.status == Status::Measured && !variant.times.is_empty();
        let ratio = reference.as_ref().filter(|_| measured).map(|cpu| {
            let (value, low, high) = statistics::ratio(cpu, &variant.times, Pairing::Rounds);
            Ratio { value, low, high }
        });
        Measured {
            workload: workload.name().to_owned(),
            what: variant.what,
            device: variant.device.name(),
            precision: variant.precision,
            status: variant.status,
            why: variant.why,
            warm_up: variant.warm_up,
            repeats: variant.repeats,
            median_ns: if measured { median } else { 0.0 },
            interval: if measured { Interval { low, high } } else { Interval::default() },
            p95_ns: if measured { statistics::quantile(&variant.times, 0.95) } else { 0.0 },
            throughput: Throughput {
                value: if measured { variant.amount.count / seconds } else { 0.0 },
                unit: variant.amount.unit.to_owned(),
            },
            share_of_peak: None,
            memory: variant.memory,
            launches: variant.launches,
            speed_to_cpu: ratio,
            times_ns: variant.times,
        }
    };
    variants.into_iter().map(to_measured).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot::device::open;

    #[test]
    fn the_cpu_is_measured_in_turns_and_its_warm_up_separately() {
        let cpu = open(DeviceName::CPU).expect("the CPU opens");
        let settings = Settings {
            workloads: vec![Workload::Attention, Workload::CopyToHost],
            precisions: vec![Dtype::F32],
            time_each: Duration::from_millis(60),
            ..Settings::new(vec![cpu]).quick()
        };
        let mut done = 0;
        let report = run(&settings, &mut |progress| {
            done += usize::from(matches!(progress, Progress::Done(_)));
        });
        let [attention, copy] = &report.results[..] else { panic!("{:?}", report.results) };
        assert_eq!(done, 2);
        assert!(attention.is_measured() && attention.times_ns.len() >= 2);
        assert!(attention.warm_up.runs >= 2 && attention.warm_up.first_ns > 0.0);
        assert!(attention.interval.low <= attention.median_ns);
        assert!(attention.median_ns <= attention.interval.high);
        let ratio = attention.speed_to_cpu.expect("the CPU to itself");
        assert_eq!(ratio.value, 1.0);
        let share = attention.share_of_peak.expect("products have a peak");
        assert!(share > 0.0 && share <= 1.0, "{share}");
        assert_eq!(copy.status, Status::Skipped);
        assert!(copy.why.as_deref().is_some_and(|why| why.contains("nothing is copied")));
        let text = serde_json::to_string(&report).expect("a report is JSON");
        let again: BenchReport = serde_json::from_str(&text).expect("and reads back");
        assert_eq!(again.results.len(), 2);
    }
}
