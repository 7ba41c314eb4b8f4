//! The training steps that `benches/peers/train.py` does in PyTorch: prints `NAME MILLISECONDS PROCESSOR-MILLISECONDS`
//! for all, or for those that are named. `gpt-512`, which has to be named, is the one of `benches/peers/gpu.py`; with `--device gpu` a step's kernel
//! launches follow.

use std::time::Instant;

use burn::module::Module;
use surefoot::Footing;
use surefoot::device::{DeviceName, Selector};
use surefoot_train::batch::HostBatch;
use surefoot_train::config::ModelConfig;
use surefoot_train::data::{Form, Label, Sample, Target};
use surefoot_train::model::Builtin;
use surefoot_train::optimizer::UpdateRule;
use surefoot_train::parameters::shapes;
use surefoot_train::random::SeededRandom;
use surefoot_train::state::State;
use surefoot_train::step::{StepOrder, StepSettings, step};

fn main() {
    surefoot_ops::keep_freed_memory();
    let images = Form::Dense { channels: 3, height: 32, width: 32, target: Target::Classes(10) };
    let text = |length| Form::Text { vocabulary: 96, length };
    let cnn = |width| ModelConfig::Cnn { width, stages: 3 };
    let gpt = |layers, heads, width| ModelConfig::Gpt { layers, heads, width };
    let mut wanted: Vec<String> =
        std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let device = match wanted.iter().position(|name| name == "--device") {
        Some(at) => wanted.drain(at..).nth(1).expect("--device has a name"),
        None => "cpu".to_owned(),
    };
    let device: DeviceName = device.parse().expect("the name of a device");
    let long = Form::Text { vocabulary: 95, length: 256 };
    let cases = [
        ("cnn-16", cnn(16), images, 32),
        ("cnn-32", cnn(32), images, 32),
        ("cnn-64", cnn(64), images, 16),
        ("gpt-128", gpt(4, 4, 128), text(64), 16),
        ("gpt-256", gpt(4, 4, 256), text(128), 8),
        ("gpt-384", gpt(6, 6, 384), text(256), 4),
        ("gpt-512", gpt(6, 8, 512), long, 16),
    ];
    for (name, config, form, samples) in cases {
        if (wanted.is_empty() && name != "gpt-512") || wanted.iter().any(|wanted| wanted == name) {
            let clip_norm = (name == "gpt-512").then_some(1.0);
            let measured = milliseconds(&config, form, samples, clip_norm, device);
            println!("{name} {:.1} {:.1}", measured.clock, measured.processor);
            if measured.launches > 0 {
                println!("{name}: {} launches", measured.launches);
            }
        }
    }
}

/// What a step takes.
struct Measured {
    clock: f64,
    processor: f64,
    launches: u64,
}

/// Milliseconds of processor time that this process has taken, where Linux tells it.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // Fields 14 and 15, user and system, in hundredths of a second.
    after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        * 10.0
}

fn milliseconds(
    config: &ModelConfig,
    form: Form,
    samples: usize,
    clip_norm: Option<f64>,
    name: DeviceName,
) -> Measured {
    let footing =
        Footing::builder().devices(Selector::only(name)).build().expect("the device opens");
    let device = footing.device().expect("the device opens");
    let model =
        Builtin::new(config, form, 1, device.burn()).unwrap_or_else(|error| panic!("{error}"));
    let shapes = shapes(&model);
    let mut state = State::new(model.valid(), name);
    let mut random = SeededRandom::of(&[1]);
    let mut batch = HostBatch::new(form, samples);
    for _ in 0..samples {
        let sample = match form {
            Form::Dense { .. } => Sample::Dense {
                values: (0..form.size()).map(|_| random.normal() as f32).collect(),
                label: Label::Class(random.below(10)),
            },
            Form::Text { vocabulary, length } | Form::Sequences { vocabulary, length, .. } => {
                Sample::Tokens((0..=length).map(|_| random.below(vocabulary) as u32).collect())
            }
        };
        batch.push(sample).expect("the sample fits");
    }
    let rule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    let settings = StepSettings { rule, clip_norm, micro_batch: samples };
    let order = StepOrder { lr: 1e-3, checkpointing: false, name_bad: false };
    let mut before = 0.0;
    let mut times: Vec<f64> = (0..23)
        .map(|at| {
            if at == 3 {
                before = processor_time();
            }
            let started = Instant::now();
            let done = step(&footing, &settings, order, &state, &shapes, &batch);
            state = done.expect("a step works").value.state;
            1e3 * started.elapsed().as_secs_f64()
        })
        .skip(3)
        .collect();
    let processor = (processor_time() - before) / times.len() as f64;
    times.sort_by(f64::total_cmp);
    let (done, launches) =
        surefoot_ops::count_launches(|| step(&footing, &settings, order, &state, &shapes, &batch));
    done.expect("a step works");
    Measured { clock: times[times.len() / 2], processor, launches: launches.values().sum() }
}
