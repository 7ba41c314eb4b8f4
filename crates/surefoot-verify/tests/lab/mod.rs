//! A tiny GPT that is made, trained and changed on the spot, as a folder that the program reads.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]
#![allow(dead_code, unused_imports, reason = "each test uses its part of it")]

mod random;
mod training;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use safetensors::Dtype;
use surefoot_models::Opened;
use surefoot_models::folder::header::WeightDtype;
use surefoot_verify::calibrate::{self, Pass, PassPrecision, Variations};
use surefoot_verify::capture::{self, Captures};
use surefoot_verify::challenge::ChallengeSet;
use surefoot_verify::decision::Verdict;
use surefoot_verify::fingerprint::{Fingerprint, RunInfo, SketchPolicy};
use surefoot_verify::identity::Identity;
use surefoot_verify::noise::Noise;
use surefoot_verify::site::{Site, SiteSelection};

pub(crate) use random::SeededRandom;
pub(crate) use training::{Adam, Descent};
pub(crate) use weights::Weights;

pub(crate) const WIDTH: usize = 64;
pub(crate) const VOCAB: usize = 128;
pub(crate) const PLACES: usize = 64;
pub(crate) const HEADS: usize = 4;

/// A run of a model as the program does it, with everything that can be varied.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) pass: Pass,
    pub(crate) choice: SiteSelection,
    pub(crate) calibrate: bool,
}

impl Options {
    pub(crate) fn new() -> Self {
        Self { pass: Pass::plain(64), choice: SiteSelection::All, calibrate: true }
    }

    pub(crate) fn candidate() -> Self {
        Self { calibrate: false, ..Self::new() }
    }
}

pub(crate) fn run(folder: &Path, set: &ChallengeSet, pass: &Pass) -> Captures {
    let is_bf16 = pass.precision == PassPrecision::Bf16;
    let compute = if is_bf16 { WeightDtype::Bf16 } else { WeightDtype::F32 };
    let opened = Opened::new(folder).unwrap().on(&Device::flex(), compute);
    let work = capture::work(&opened, pass.group.min(set.sequences.len()), set.longest());
    let plan = opened.plan_with_share(&work, if pass.streamed { 0.0 } else { 1.0 });
    let model = opened.load(&plan, &Device::flex(), Arc::default()).unwrap();
    capture::capture(&model, &set.sequences, 0, 8192, pass.group, pass.disturbance, || {}).unwrap()
}

pub(crate) fn fingerprint(folder: &Path, set: &ChallengeSet, options: Options) -> Fingerprint {
    let opened = Opened::new(folder).unwrap();
    let captures = run(folder, set, &options.pass);
    let is_bf16 = options.pass.precision == PassPrecision::Bf16;
    let mut noise = Noise::default();
    if options.calibrate {
        let variations = Variations {
            smaller_group: (set.sequences.len() > 1).then(|| set.sequences.len().div_ceil(2)),
            group: set.sequences.len(),
            is_streamed: false,
            is_fp32: !is_bf16,
            elsewhere: None,
        };
        let trials = calibrate::trials(&opened.blueprint, &variations);
        noise = calibrate::calibrate(&captures, &trials, |_, pass| {
            let asked = pass.precision == PassPrecision::Asked;
            let precision = if asked { options.pass.precision } else { pass.precision };
            Ok::<_, ()>(run(folder, set, &Pass { precision, ..*pass }))
        })
        .unwrap();
    }
    let run = RunInfo {
        device: "cpu".into(),
        precision: if is_bf16 { "bf16" } else { "fp32" }.into(),
        placement: "resident".into(),
        weights: None,
    };
    let policy = SketchPolicy { bits: 8192, sites: options.choice };
    let identity = Identity::read(&opened).unwrap();
    Fingerprint::new(identity, policy, run, set.clone(), captures, noise).unwrap()
}

/// A folder of models: the trained one, and what is made of it.
pub(crate) struct TestModels {
    folder: tempfile::TempDir,
    pub(crate) reference: PathBuf,
}

impl TestModels {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let reference = folder.path().join("reference");
        Weights::trained().write(&reference, Dtype::F32);
        Self { folder, reference }
    }

    pub(crate) fn put(&self, name: &str, weights: &Weights, dtype: Dtype) -> PathBuf {
        let folder = self.folder.path().join(name);
        weights.write(&folder, dtype);
        folder
    }
}

/// A model, how it is run, and what must be said of it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
    pub(crate) pass: Pass,
    pub(crate) verdict: Verdict,
    /// The first site that diverges.
    pub(crate) first: Option<Site>,
}

/// Everything that has to be told apart.
pub(crate) fn cases(shelf: &TestModels) -> Vec<Case> {
    let base = Weights::trained();
    let plain = Pass::plain(64);
    let bf16 = Pass { precision: PassPrecision::Bf16, ..plain };
    let same = |name, folder: PathBuf, pass| Case {
        name,
        folder,
        pass,
        verdict: Verdict::Same,
        first: None,
    };
    let different = |name, folder, pass, first| Case {
        name,
        folder,
        pass,
        verdict: Verdict::Different,
        first: Some(first),
    };
    let own = || shelf.reference.clone();
    let put = |name: &str, weights: &Weights| shelf.put(name, weights, Dtype::F32);
    let put_bf16 = |name: &str, weights: &Weights| shelf.put(name, weights, Dtype::BF16);
    let scaled = base.scaled("h.1.mlp.c_proj.weight", 1.02);
    let lora = base.with_lora(&[2], 4, 0.03);
    let step = base.stepped(&mut Adam::new(1e-4));
    vec![
        same("the same again", own(), plain),
        same("batches of 1", own(), Pass { group: 1, ..plain }),
        same("batches of 7", own(), Pass { group: 7, ..plain }),
        same("streamed", own(), Pass { streamed: true, ..plain }),
        same("run in bf16", own(), bf16),
        same("stored in bf16", put_bf16("bf16", base), plain),
        same("stored and run in bf16", put_bf16("bf16", base), bf16),
        different("int8 weights", put("int8", &base.rounded(8)), plain, Site::Block(0)),
        different(
            "int8 weights, stored and run in bf16",
            put_bf16("int8b", &base.rounded(8)),
            bf16,
            Site::Block(0),
        ),
        different("int4 weights", put("int4", &base.rounded(4)), plain, Site::Block(0)),
        different(
            "int4 weights, stored and run in bf16",
            put_bf16("int4b", &base.rounded(4)),
            bf16,
            Site::Block(0),
        ),
        different(
            "one step of Adam at 1e-5",
            put("adam5", &base.stepped(&mut Adam::new(1e-5))),
            plain,
            Site::Embeddings,
        ),
        different("one step of Adam at 1e-4", put("adam4", &step), plain, Site::Embeddings),
        different(
            "one step of Adam at 1e-4, stored and run in bf16",
            put_bf16("adam4b", &step),
            bf16,
            Site::Block(0),
        ),
        different(
            "one step of descent at 1e-3",
            put("sgd", &base.stepped(&mut Descent(1e-3))),
            plain,
            Site::Embeddings,
        ),
        different(
            "blocks 1 and 2 swapped",
            put("swap", &base.swapped(1, 2)),
            plain,
            Site::Block(1),
        ),
        different("block 1 scaled by 1.02", put("scale", &scaled), plain, Site::Block(1)),
        different(
            "block 1 scaled by 1.02, stored and run in bf16",
            put_bf16("scaleb", &scaled),
            bf16,
            Site::Block(1),
        ),
        different(
            "final norm scaled by 1.01",
            put("norm", &base.scaled("ln_f.weight", 1.01)),
            plain,
            Site::Norm,
        ),
        different(
            "head scaled by 1.01",
            put("head", &base.scaled("lm_head.weight", 1.01)),
            plain,
            Site::Head,
        ),
        different("rank 4, 3 % in block 2", put("lora", &lora), plain, Site::Block(2)),
        different(
            "rank 4, 3 % in block 2, stored and run in bf16",
            put_bf16("lorab", &lora),
            bf16,
            Site::Block(2),
        ),
        different("another seed", put("seed", &Weights::new(2, 4)), plain, Site::Embeddings),
        different(
            "another architecture",
            put("depth", &Weights::new(2, 3)),
            plain,
            Site::Embeddings,
        ),
    ]
}
