//! A device that is lost with everything on it.

use super::*;
use crate::batch::Batch;
use crate::model::{Mlp, Score};
use crate::state::tests::HOLDS_LEFT;
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;
use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::place::Autocast;
use surefoot::recover::{Drill, Policy};

const CONFIG: &str =
    "{data: {kind: digits}, model: {kind: mlp, hidden: [16]}, batch_size: 160, steps: 12}";

/// A model whose weights can't be moved once they are a step's result: as on a device that is
/// gone, where every way to them panics.
#[derive(Clone, Debug)]
struct Bound {
    model: Mlp,
    stepped: bool,
}

impl Module for Bound {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.model.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn to_device(self, device: &Device) -> Self {
        assert!(!self.stepped, "the device is gone, and its memory with it");
        Self { model: self.model.to_device(device), ..self }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.model.visit(visitor);
    }

    /// New values come with a step.
    fn map<P: ModuleMapper>(self, mapper: &mut P) -> Self {
        Self { model: self.model.map(mapper), stepped: true }
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        Self { model: self.model.valid(), ..*self }
    }

    fn train(self) -> Self {
        Self { model: self.model.train(), ..self }
    }
}

impl Trainable for Bound {
    fn score(&self, batch: &Batch, cast: Autocast) -> Score {
        self.model.score(batch, cast)
    }
}

fn train(drill: Drill) -> (TrainReport, Vec<TrainEvent>) {
    let (report, heard) = try_to_train(CONFIG, drill, Policy::default(), |_| {});
    (report.unwrap(), heard)
}

fn try_to_train(
    text: &str,
    drill: Drill,
    policy: Policy,
    tell: impl Fn(&TrainEvent),
) -> (Result<TrainReport, TrainError>, Vec<TrainEvent>) {
    let config = Config::parse(text, &[]).unwrap();
    let data = crate::data::open(&config.data, config.seed).unwrap();
    let spare = DeviceName { backend: Backend::Cpu, index: 1 };
    let footing = Footing::builder()
        .devices(Selector::Chain(vec![spare, DeviceName::CPU]))
        .drill(drill)
        .policy(policy)
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = Run {
        footing: &footing,
        config: &config,
        flags: Vec::new(),
        data: &data,
        checkpoints: CheckpointFolder::new(folder.path(), 1).unwrap(),
        stop: &AtomicBool::new(false),
        earlier_faults: Vec::new(),
        ranks: None,
    };
    let device = footing.device().unwrap();
    let model = Mlp::new(64, &[16], 10, config.seed, device.burn());
    let model = Bound { model, stepped: false };
    let mut heard = Vec::new();
    let report = run.train(model, None, |news| {
        tell(news);
        heard.push(news.clone());
    });
    (report, heard)
}

#[test]
fn a_state_that_goes_with_its_device_is_made_again_from_the_host_s_copy() {
    let (expected, _) = train(Drill::default());
    for step in [1, 6, 11] {
        let (report, news) = train(Drill::once(FaultKind::DeviceLost, step).on("cpu:1"));
        assert!(news.iter().any(|news| matches!(news, TrainEvent::Rewound { .. })), "{step}");
        assert_eq!((report.steps, report.device.as_str()), (12, "cpu"), "{step}");
        assert_eq!(report.test_loss.to_bits(), expected.test_loss.to_bits(), "{step}");
        let losses = |report: &TrainReport| report.epochs.last().unwrap().train_loss.to_bits();
        assert_eq!(losses(&report), losses(&expected), "{step}");
    }
}

#[test]
fn a_state_that_is_never_read_back_ends_the_run_and_does_not_repeat_it_forever() {
    let every_2 = CONFIG.replace("steps", "checkpoint: {every: 2}, steps");
    // The copy of the start is made, and no other.
    HOLDS_LEFT.set(Some(1));
    let (ended, news) = try_to_train(&every_2, Drill::default(), Policy::default(), |_| {});
    HOLDS_LEFT.set(None);
    let Err(TrainError::Fault { fault, step: 0, .. }) = ended else { panic!("{ended:?}") };
    assert!(fault.to_string().contains("went back to step 0 3 times"), "{fault}");
    assert!(fault.advice.iter().any(|advice| advice.contains("--device cpu")), "{fault}");
    let rewinds = news.iter().filter(|news| matches!(news, TrainEvent::Rewound { to: 0 })).count();
    assert_eq!(rewinds, 3);
}

#[test]
fn a_run_without_another_device_saves_the_host_s_copy() {
    let drill = "device_lost:step=10,device=cpu:1,op=train step".parse().unwrap();
    // From the fault on, nothing can be read from the device.
    let lose = |news: &TrainEvent| {
        if let TrainEvent::Fault(_) = news {
            HOLDS_LEFT.set(Some(0));
        }
    };
    let (ended, news) = try_to_train(CONFIG, drill, Policy::default().no_fallback(), lose);
    HOLDS_LEFT.set(None);
    let Err(TrainError::Fault { step: 10, saved: Some(saved), .. }) = ended else {
        panic!("{ended:?} {news:?}")
    };
    // The copy is from the end of the epoch, or later.
    let name = saved.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name == "step-00000009.safetensors" || name == "step-00000010.safetensors", "{name}");
}
