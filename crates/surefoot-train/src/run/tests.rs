//! A device that is lost with everything on it.

use super::*;
use crate::model::Builtin;
use crate::step::tests::STATE_IS_LOST;
use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::journal::Journal;
use surefoot::recover::Drill;

const CONFIG: &str =
    "{data: {kind: digits}, model: {kind: mlp, hidden: [16]}, batch_size: 160, steps: 12}";

fn train(drill: Drill) -> (Report, Vec<News>) {
    let config = Config::parse(CONFIG, &[]).unwrap();
    let data = crate::data::open(&config.data, config.seed).unwrap();
    let watch = Watch::default();
    let spare = DeviceName { backend: Backend::Cpu, index: 1 };
    let footing = Footing::builder()
        .devices(Selector::Chain(vec![spare, DeviceName::CPU]))
        .journal(Journal::builder().listener(watch.listener()).build())
        .drill(drill)
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = Run {
        footing: &footing,
        config: &config,
        origin: (CONFIG.to_owned(), Vec::new()),
        data: &data,
        shelf: Shelf::new(folder.path(), 1).unwrap(),
        watch,
        stop: &AtomicBool::new(false),
    };
    let device = footing.device().unwrap();
    let model = Builtin::new(&config.model, data.form(), config.seed, device.burn());
    let mut heard = Vec::new();
    let report = run.train(model, None, |news| heard.push(news.clone())).unwrap();
    (report, heard)
}

#[test]
fn a_state_that_goes_with_its_device_is_made_again_from_the_host_s_copy() {
    let (expected, _) = train(Drill::default());
    for step in [0, 6, 11] {
        STATE_IS_LOST.set(true);
        let (report, news) = train(Drill::once(FaultKind::DeviceLost, step).on("cpu:1"));
        STATE_IS_LOST.set(false);
        assert!(news.iter().any(|news| matches!(news, News::Rewound { .. })), "{step}");
        assert_eq!((report.steps, report.device.as_str()), (12, "cpu"), "{step}");
        assert_eq!(report.test_loss.to_bits(), expected.test_loss.to_bits(), "{step}");
        let losses = |report: &Report| report.epochs.last().unwrap().train_loss.to_bits();
        assert_eq!(losses(&report), losses(&expected), "{step}");
    }
}
