//! A short run that can be disturbed.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use surefoot::Footing;
use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::recover::{Drill, Policy};
use surefoot_train::checkpoint::CheckpointFolder;
use surefoot_train::data;
use surefoot_train::model::Builtin;
use surefoot_train::ranks::Ranks;
use surefoot_train::{Config, Run, TrainError, TrainEvent, TrainReport};

/// Twelve steps: an epoch of nine batches and a bit.
pub(crate) const SHORT: &str = "\
data: {kind: digits, augment: {crop: 1}}
model: {kind: mlp, hidden: [32]}
batch_size: 160
steps: 12
optimizer: {lr: 0.01}
clip_norm: 1.0
workers: 1
";

/// The processor under another name, so that there is a device to lose.
pub(crate) const SPARE: DeviceName = DeviceName { backend: Backend::Cpu, index: 1 };

/// A run to be.
pub(crate) struct Trial<'a> {
    pub(crate) config: &'a str,
    pub(crate) flags: Vec<(String, String)>,
    pub(crate) drill: &'a str,
    /// Instead of `drill`, for a caller that counts its strikes.
    pub(crate) counted_drill: Option<Drill>,
    pub(crate) policy: Policy,
    pub(crate) devices: Vec<DeviceName>,
    pub(crate) folder: &'a Path,
    pub(crate) resume: Option<&'a Path>,
    /// Stop when this many steps are done.
    pub(crate) stop_after: Option<u64>,
    /// The ranks that do this run together.
    pub(crate) ranks: Option<&'a dyn Ranks>,
    /// A budget for the weights of a published model alone, such as "1MiB": what does not fit is streamed.
    pub(crate) weight_memory: Option<&'a str>,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(folder: &'a Path) -> Self {
        Self {
            config: SHORT,
            flags: Vec::new(),
            drill: "",
            counted_drill: None,
            policy: Policy::default(),
            devices: vec![DeviceName::CPU],
            folder,
            resume: None,
            stop_after: None,
            ranks: None,
            weight_memory: None,
        }
    }

    pub(crate) fn set(mut self, key: &str, value: &str) -> Self {
        self.flags.push((key.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn run(self) -> Result<(TrainReport, Vec<TrainEvent>), TrainError> {
        let config = Config::parse(self.config, &self.flags).unwrap();
        let data = data::open(&config.data, config.seed).unwrap();
        let drill: Drill = match (self.counted_drill, self.drill) {
            (Some(drill), _) => drill,
            (None, "") => Drill::default(),
            (None, drill) => drill.parse().unwrap(),
        };
        let footing = Footing::builder()
            .devices(Selector::Chain(self.devices))
            .precision(config.precision)
            .policy(self.policy)
            .drill(drill)
            .build()
            .unwrap();
        let device = footing.device().unwrap();
        let mut flags = self.flags.clone();
        flags.extend(self.weight_memory.map(|memory| ("memory".to_owned(), memory.to_owned())));
        let of_model = Config::parse(self.config, &flags).unwrap().model;
        let model = Builtin::new(&of_model, data.form(), config.seed, device.burn()).unwrap();
        if let (Some(_), Builtin::Pretrained(model)) = (self.weight_memory, &model) {
            assert_eq!(model.resident_share(), 0.0, "all weights are streamed");
        }
        let stop = AtomicBool::new(false);
        let run = Run {
            footing: &footing,
            config: &config,
            flags: self.flags.clone(),
            data: &data,
            checkpoints: CheckpointFolder::new(self.folder, config.checkpoint.keep).unwrap(),
            stop: &stop,
            earlier_faults: Vec::new(),
            ranks: self.ranks,
        };
        let mut heard = Vec::new();
        let report = run.train(model, self.resume, |news| {
            if let TrainEvent::Step { step, .. } = news
                && self.stop_after.is_some_and(|after| *step >= after)
            {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            heard.push(news.clone());
        })?;
        Ok((report, heard))
    }
}

/// The last loss of a run that nothing disturbed.
pub(crate) fn undisturbed() -> f64 {
    let folder = tempfile::tempdir().unwrap();
    Trial::new(folder.path()).run().unwrap().0.test_loss
}
