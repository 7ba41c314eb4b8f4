//! A module of your own, trained by the same loop: guarded steps, checkpoints, recovery.

use std::sync::atomic::AtomicBool;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::gelu;
use surefoot::place::Autocast;
use surefoot::{BoxError, Footing};
use surefoot_train::checkpoint::CheckpointFolder;
use surefoot_train::{Config, Run, Score, TrainEvent, Trainable, batch::Batch, data};

#[derive(Module, Debug)]
struct Mine {
    wide: Linear,
    narrow: Linear,
}

impl Trainable for Mine {
    fn score(&self, batch: &Batch, _cast: Autocast) -> Score {
        let hidden = gelu(self.wide.forward(batch.dense()));
        Score::of(self.narrow.forward(hidden), batch)
    }
}

fn main() -> Result<(), BoxError> {
    let text = "{data: {kind: digits}, model: {kind: mlp}, epochs: 10, optimizer: {lr: 0.005}}";
    let config = Config::parse(text, &[])?;
    let data = data::open(&config.data, config.seed)?;
    let footing = Footing::builder().build()?;
    let device = footing.device()?.burn().clone();
    let run = Run {
        footing: &footing,
        config: &config,
        flags: Vec::new(),
        data: &data,
        checkpoints: CheckpointFolder::fresh("runs/own_module".as_ref(), 2)?,
        stop: &AtomicBool::new(false),
        earlier_faults: Vec::new(),
        ranks: None,
    };
    let model = Mine {
        wide: LinearConfig::new(64, 96).init(&device),
        narrow: LinearConfig::new(96, 10).init(&device),
    };
    let report = run.train(model, None, |news| {
        if let TrainEvent::Epoch(epoch) = news {
            println!("epoch {}: test accuracy {:.3}", epoch.epoch, epoch.test_accuracy);
        }
    })?;
    println!("{:.1} % after {} steps", 100.0 * report.test_accuracy, report.steps);
    Ok(())
}
