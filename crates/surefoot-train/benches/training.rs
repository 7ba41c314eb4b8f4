//! What the loop and the loader cost, as ratios in one run.
//!
//!     cargo bench -p surefoot-train --bench training
//!
//! The loop: a guarded step against the same model, data and optimizer rule in a bare Burn loop.
//! The loader: an epoch whose CIFAR-shaped samples come through the loader, with augmentation,
//! against the same steps on a batch that is in memory. Rounds alternate and medians are
//! compared, so that a busy machine slows both sides alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use surefoot::Footing;
use surefoot::device::{DeviceName, Selector};
use surefoot::place::{Autocast, Dtype};
use surefoot_train::batch::HostBatch;
use surefoot_train::config::{LoadingConfig, ModelConfig, OnBadSample};
use surefoot_train::data::{Augment, Form, Label, Sample, Source, Target, Transform};
use surefoot_train::loader::{Loader, Loading, Recipe, plan};
use surefoot_train::model::{Builtin, Trainable};
use surefoot_train::optimizer::UpdateRule;
use surefoot_train::parameters::shapes;
use surefoot_train::state::State;
use surefoot_train::step::{StepOrder, StepSettings, step};

const RULE: UpdateRule =
    UpdateRule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
const ORDER: StepOrder = StepOrder { lr: 1e-3, checkpointing: false, name_bad: false };

/// Images that take a while to make, as those from files do.
struct Images {
    pixels: Vec<u8>,
}

const IMAGE: usize = 3 * 32 * 32;
const COUNT: usize = 512;

impl Source for Images {
    fn len(&self) -> usize {
        COUNT
    }

    fn form(&self) -> Form {
        Form::Dense { channels: 3, height: 32, width: 32, target: Target::Classes(10) }
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let pixels = &self.pixels[at * IMAGE..(at + 1) * IMAGE];
        let values = pixels.iter().map(|pixel| f32::from(*pixel) / 255.0).collect();
        Ok(Sample::Dense { values, label: Label::Class(at % 10) })
    }

    fn name(&self, at: usize) -> String {
        format!("image {at}")
    }
}

fn main() {
    let footing =
        Footing::builder().devices(Selector::only(DeviceName::CPU)).build().expect("the CPU opens");
    let source = Arc::new(Images {
        pixels: (0..COUNT * IMAGE).map(|at| ((at * 2_654_435_761) >> 7) as u8).collect(),
    });
    let augment = Augment { flip: true, crop: 4 };
    let recipe = Recipe {
        transform: Arc::new(Transform::learn(&*source, true, augment)),
        source,
        on_bad_sample: OnBadSample::Fail,
        seed: Some(1),
        class_weights: None,
    };
    let model = ModelConfig::Cnn { width: 16, stages: 3 };
    println!("cnn 16×3, batch 32, 32×32×3 images, AdamW");
    loop_against_bare(&footing, &recipe, &model);
    loader_against_memory(&footing, &recipe, &model);
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn settings(micro_batch: usize) -> StepSettings {
    StepSettings { rule: RULE, clip_norm: None, micro_batch }
}

fn loop_against_bare(footing: &Footing, recipe: &Recipe, config: &ModelConfig) {
    let batch = recipe.make(&(0..32).collect::<Vec<_>>(), 0).expect("samples are good");
    let device = footing.device().expect("the CPU opens").burn().clone();
    let model = Builtin::new(config, recipe.source.form(), 1, &device)
        .unwrap_or_else(|error| panic!("{error}"));
    let shapes = shapes(&model);
    let mut state = State::new(model.clone().valid(), DeviceName::CPU);
    let mut bare = model.train();
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    let mut guarded = || {
        let done = step(footing, &settings(32), ORDER, &state, &shapes, &batch);
        state = done.expect("a step works").value.state;
    };
    let mut plain = || {
        let on_device = batch.on_device(0..32, &device).expect("labels are good");
        let score = bare.score(&on_device, Autocast::new(Dtype::F32));
        let loss = score.loss / 32.0;
        let gradients = GradientsParams::from_grads(loss.backward(), &bare);
        bare = optimizer.step(1e-3, bare.clone(), gradients);
        // A loop that shows its loss reads it.
        std::hint::black_box(loss.into_scalar::<f32>());
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        ours.push(timed(&mut guarded));
        theirs.push(timed(&mut plain));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "loop / bare Burn loop:   {:.3}  ({:.1} ms / {:.1} ms; target ≤ 1.03)",
        ours / theirs,
        1e3 * ours,
        1e3 * theirs
    );
}

fn loader_against_memory(footing: &Footing, recipe: &Recipe, config: &ModelConfig) {
    let device = footing.device().expect("the CPU opens").burn().clone();
    let model = Builtin::new(config, recipe.source.form(), 1, &device)
        .unwrap_or_else(|error| panic!("{error}"));
    let shapes = shapes(&model);
    let state = State::new(model.valid(), DeviceName::CPU);
    let one = |batch: &HostBatch| {
        let done = step(footing, &settings(32), ORDER, &state, &shapes, batch);
        std::hint::black_box(done.expect("a step works").value.loss);
    };
    let loading = Loading::choose(LoadingConfig::default(), recipe, 32, true);
    let in_memory: Vec<HostBatch> = plan(COUNT, 32, Some(1), 0)
        .iter()
        .map(|samples| recipe.make(samples, 0).expect("samples are good"))
        .collect();
    let (mut loaded, mut memory) = (Vec::new(), Vec::new());
    for epoch in 0..7 {
        loaded.push(timed(|| {
            let plan = plan(COUNT, 32, Some(1), epoch);
            for batch in Loader::start(recipe.clone(), epoch, plan, loading) {
                one(&batch.expect("samples are good"));
            }
        }));
        memory.push(timed(|| in_memory.iter().for_each(one)));
    }
    let (loaded, memory) = (median(loaded), median(memory));
    println!(
        "loader / data in memory: {:.3}  ({:.0} ms / {:.0} ms an epoch, {} workers; target ≤ 1.05)",
        loaded / memory,
        1e3 * loaded,
        1e3 * memory,
        loading.workers
    );
}
