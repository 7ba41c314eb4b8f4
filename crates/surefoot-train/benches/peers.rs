//! The training steps that `benches/peers/train.py` does in PyTorch: prints `NAME MILLISECONDS`
//! for both, or for those that are named. `gpt-512` is the one of `benches/peers/gpu.py`; with `--device gpu` a step's kernel
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
    let text = Form::Text { vocabulary: 96, length: 128 };
    let cnn = ModelConfig::Cnn { width: 16, stages: 3 };
    let gpt = ModelConfig::Gpt { layers: 4, heads: 4, width: 256 };
    let long = Form::Text { vocabulary: 95, length: 256 };
    let wide = ModelConfig::Gpt { layers: 6, heads: 8, width: 512 };
    let mut wanted: Vec<String> =
        std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let device = match wanted.iter().position(|name| name == "--device") {
        Some(at) => wanted.drain(at..).nth(1).expect("--device has a name"),
        None => "cpu".to_owned(),
    };
    let device: DeviceName = device.parse().expect("the name of a device");
    let cases = [("cnn", cnn, images, 32), ("gpt", gpt, text, 8), ("gpt-512", wide, long, 16)];
    for (at, (name, config, form, samples)) in cases.into_iter().enumerate() {
        if (wanted.is_empty() && at < 2) || wanted.iter().any(|wanted| wanted == name) {
            let (time, launches) = milliseconds(&config, form, samples, device);
            println!("{name} {time:.1}");
            if launches > 0 {
                println!("{name}: {launches} launches");
            }
        }
    }
}

fn milliseconds(config: &ModelConfig, form: Form, samples: usize, name: DeviceName) -> (f64, u64) {
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
    let clip_norm = (samples == 16).then_some(1.0);
    let settings = StepSettings { rule, clip_norm, micro_batch: samples };
    let order = StepOrder { lr: 1e-3, checkpointing: false, name_bad: false };
    let mut times: Vec<f64> = (0..23)
        .map(|_| {
            let started = Instant::now();
            let done = step(&footing, &settings, order, &state, &shapes, &batch);
            state = done.expect("a step works").value.state;
            1e3 * started.elapsed().as_secs_f64()
        })
        .skip(3)
        .collect();
    times.sort_by(f64::total_cmp);
    let (done, launches) =
        surefoot_ops::count_launches(|| step(&footing, &settings, order, &state, &shapes, &batch));
    done.expect("a step works");
    (times[times.len() / 2], launches.values().sum())
}
