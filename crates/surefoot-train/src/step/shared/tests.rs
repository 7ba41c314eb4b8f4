use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig};
use surefoot::place::Autocast;

use super::*;
use crate::batch::{Batch, HostBatch};
use crate::data::{Form, Label, Sample, Target};
use crate::model::Score;
use crate::optimizer::UpdateRule;
use crate::ranks::{ThreadRanks, share};

/// A model with running statistics.
#[derive(Module, Debug)]
struct Normed {
    sums: Linear,
    norm: BatchNorm,
    layer: Linear,
}

impl Trainable for Normed {
    fn score(&self, batch: &Batch, _cast: Autocast) -> Score {
        let x = self.norm.forward(self.sums.forward(batch.dense()));
        Score::of(self.layer.forward(x), batch)
    }
}

fn batch(samples: &[f32]) -> HostBatch {
    let form = Form::Dense { channels: 2, height: 1, width: 1, target: Target::Classes(2) };
    let mut batch = HostBatch::new(form, samples.len());
    for (at, x) in samples.iter().enumerate() {
        let label = Label::Class(at % 2);
        batch.push(Sample::Dense { values: vec![*x, 10.0 * x], label }).unwrap();
    }
    batch
}

/// The running means after a step with these samples by each of so many ranks.
fn means_of_ranks(count: usize, samples: &[f32]) -> Vec<Vec<f32>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadRanks::group(count)
            .into_iter()
            .map(|ranks| scope.spawn(move || means(&ranks, samples)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn means(ranks: &ThreadRanks, samples: &[f32]) -> Vec<f32> {
    let footing = Footing::builder().build().unwrap();
    let device = footing.device().unwrap().burn().clone();
    let constant = |value| Initializer::Constant { value };
    let linear = LinearConfig::new(2, 2).with_bias(false);
    let model = Normed {
        sums: linear.clone().with_initializer(constant(1.0)).init(&device),
        norm: BatchNormConfig::new(2).init(&device),
        layer: linear.with_initializer(constant(0.5)).init(&device),
    };
    let shapes = parameters::shapes(&model);
    let rule = UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.0 };
    let settings = StepSettings { rule, clip_norm: None, micro_batch: 4 };
    let order = StepOrder { lr: 0.1, checkpointing: false, name_bad: false };
    let state = State::new(model.valid(), footing.device().unwrap().name());
    let own = batch(&samples[share(samples.len(), ranks.rank(), ranks.count())]);
    let own = Share {
        feed: Ok(Feed::from(&own)),
        stop: false,
        tells_status: true,
        time: StepTime::default(),
    };
    let did = step(ranks, &footing, &settings, order, &state, &shapes, own).unwrap();
    let mean = did.done.state.model.norm.running_mean.value();
    mean.into_data().try_to_vec::<f32>().unwrap()
}

#[test]
fn running_statistics_are_the_mean_of_all_ranks() {
    // The sums of the samples are 11, 22, 33 and 66: a tenth of the way from 0 to their mean, 33.
    for count in [1, 2, 4] {
        let means = means_of_ranks(count, &[1.0, 2.0, 3.0, 6.0]);
        assert!(means.iter().all(|own| own == &means[0]), "{means:?}");
        assert!(means[0].iter().all(|mean| (mean - 3.3).abs() < 1e-4), "{count}: {means:?}");
    }
}

#[test]
fn a_rank_without_samples_takes_part() {
    let means = means_of_ranks(3, &[1.0, 2.0]);
    assert!(means.iter().all(|own| own == &means[0]), "{means:?}");
    assert!(means[0].iter().all(|mean| (mean - 1.65).abs() < 1e-4), "{means:?}");
}
