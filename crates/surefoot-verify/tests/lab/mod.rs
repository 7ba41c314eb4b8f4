//! A tiny GPT that is made, trained and changed on the spot, as a folder that the program reads.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]
#![allow(dead_code, reason = "each test uses its part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use surefoot_models::Opened;
use surefoot_models::folder::header::WeightDtype;
use surefoot_verify::calibrate::{self, Pass, PassPrecision, Variations};
use surefoot_verify::capture::{self, Captures};
use surefoot_verify::challenge::ChallengeSet;
use surefoot_verify::decision::Verdict;
use surefoot_verify::fingerprint::{Fingerprint, Policy, RunInfo};
use surefoot_verify::identity::Identity;
use surefoot_verify::noise::Noise;
use surefoot_verify::site::{Site, SiteSelection};

pub(crate) const WIDTH: usize = 64;
pub(crate) const VOCAB: usize = 128;
pub(crate) const PLACES: usize = 64;
pub(crate) const HEADS: usize = 4;
const SAMPLES: usize = 12;
const LENGTH: usize = 32;

/// Weights by name: `[inputs, outputs]` matrices and vectors, as GPT-2 stores them.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) layers: usize,
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

/// Random numbers that follow from a seed. Written by hand (SplitMix64): what these tests expect was
/// measured with models that this generator made, and a crate may change its numbers.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f64>() as f32 - 6.0
    }
}

impl Weights {
    /// Drawn from `seed`.
    pub(crate) fn new(seed: u64, layers: usize) -> Self {
        let mut chance = Chance::new(seed);
        let mut tensors = BTreeMap::new();
        let mut matrix = |name: String, rows: usize, cols: usize, size: f32| {
            let numbers = (0..rows * cols).map(|_| chance.normal() * size).collect();
            tensors.insert(name, (vec![rows, cols], numbers));
        };
        matrix("wte.weight".into(), VOCAB, WIDTH, 0.1);
        matrix("wpe.weight".into(), PLACES, WIDTH, 0.05);
        matrix("lm_head.weight".into(), VOCAB, WIDTH, 0.1);
        for layer in 0..layers {
            matrix(format!("h.{layer}.attn.c_attn.weight"), WIDTH, 3 * WIDTH, 0.1);
            matrix(format!("h.{layer}.attn.c_proj.weight"), WIDTH, WIDTH, 0.06);
            matrix(format!("h.{layer}.mlp.c_fc.weight"), WIDTH, 4 * WIDTH, 0.1);
            matrix(format!("h.{layer}.mlp.c_proj.weight"), 4 * WIDTH, WIDTH, 0.04);
        }
        let mut vector = |name: String, count: usize, value: f32| {
            tensors.insert(name, (vec![count], vec![value; count]));
        };
        for layer in 0..layers {
            vector(format!("h.{layer}.ln_1.weight"), WIDTH, 1.0);
            vector(format!("h.{layer}.ln_1.bias"), WIDTH, 0.0);
            vector(format!("h.{layer}.ln_2.weight"), WIDTH, 1.0);
            vector(format!("h.{layer}.ln_2.bias"), WIDTH, 0.0);
            vector(format!("h.{layer}.attn.c_attn.bias"), 3 * WIDTH, 0.0);
            vector(format!("h.{layer}.attn.c_proj.bias"), WIDTH, 0.0);
            vector(format!("h.{layer}.mlp.c_fc.bias"), 4 * WIDTH, 0.0);
            vector(format!("h.{layer}.mlp.c_proj.bias"), WIDTH, 0.0);
        }
        vector("ln_f.weight".into(), WIDTH, 1.0);
        vector("ln_f.bias".into(), WIDTH, 0.0);
        Self { layers, tensors }
    }

    /// Four blocks, trained to go on with what it saw: 150 steps of Adam.
    pub(crate) fn trained() -> &'static Self {
        static TRAINED: OnceLock<Weights> = OnceLock::new();
        TRAINED.get_or_init(|| {
            let mut weights = Self::new(1, 4);
            let mut adam = Adam::new(3e-3);
            let (mut first, mut last) = (0.0, 0.0);
            for step in 0..150 {
                last = weights.step(&mut adam, step);
                if step == 0 {
                    first = last;
                }
            }
            assert!(last < 0.75 * first, "training must help: {first} to {last}");
            weights
        })
    }

    /// One step of training on a batch that follows from `seed`; returns the loss.
    pub(crate) fn step(&mut self, rule: &mut dyn DecisionRule, seed: u64) -> f32 {
        let device = Device::flex().autodiff();
        let parameters: BTreeMap<String, Tensor<2>> = self
            .tensors
            .iter()
            .map(|(name, (shape, numbers))| {
                let rows = if shape.len() == 1 { 1 } else { shape[0] };
                let data = TensorData::new(numbers.clone(), [rows, numbers.len() / rows]);
                (name.clone(), Tensor::from_data(data, &device).require_grad())
            })
            .collect();
        let ids = text(seed);
        let loss = loss(&parameters, self.layers, &ids, &device);
        let value = loss.clone().into_scalar::<f32>();
        let gradients = loss.backward();
        for (name, tensor) in &parameters {
            let gradient =
                tensor.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap();
            let (_, numbers) = self.tensors.get_mut(name).unwrap();
            rule.update(name, numbers, &gradient);
        }
        rule.stepped();
        value
    }

    /// The same with every tensor changed by `change(name, shape, numbers)`.
    pub(crate) fn map(&self, change: impl Fn(&str, &[usize], &mut [f32])) -> Self {
        let mut changed = self.clone();
        for (name, (shape, numbers)) in &mut changed.tensors {
            change(name, shape, numbers);
        }
        changed
    }

    /// Rounded to `bits` bits with one scale for each output, as quantised models are.
    pub(crate) fn rounded(&self, bits: u32) -> Self {
        let most = ((1_u32 << (bits - 1)) - 1) as f32;
        self.map(|name, shape, numbers| {
            if shape.len() < 2 || !name.starts_with("h.") {
                return;
            }
            for output in 0..shape[1] {
                let of_output = || (0..shape[0]).map(|input| input * shape[1] + output);
                let scale = of_output().map(|at| numbers[at].abs()).fold(0.0, f32::max) / most;
                for at in of_output() {
                    numbers[at] = (numbers[at] / scale).round() * scale;
                }
            }
        })
    }

    /// A change of rank `rank` whose size is `share` of the matrix, in the attention of `layers`.
    pub(crate) fn with_lora(&self, layers: &[usize], rank: usize, share: f32) -> Self {
        self.map(|name, shape, numbers| {
            if !layers.iter().any(|layer| name == format!("h.{layer}.attn.c_attn.weight")) {
                return;
            }
            let mut chance = Chance::new(77);
            let (rows, cols) = (shape[0], shape[1]);
            let a: Vec<f32> = (0..rows * rank).map(|_| chance.normal()).collect();
            let b: Vec<f32> = (0..rank * cols).map(|_| chance.normal()).collect();
            let mut delta = vec![0.0_f32; rows * cols];
            for (at, delta) in delta.iter_mut().enumerate() {
                let (row, col) = (at / cols, at % cols);
                *delta = (0..rank).map(|r| a[row * rank + r] * b[r * cols + col]).sum();
            }
            let norm = |numbers: &[f32]| numbers.iter().map(|x| x * x).sum::<f32>().sqrt();
            let scale = share * norm(numbers) / norm(&delta);
            numbers.iter_mut().zip(delta).for_each(|(x, delta)| *x += scale * delta);
        })
    }

    /// With what block `one` had in block `other`, and the other way round.
    pub(crate) fn swapped(&self, one: usize, other: usize) -> Self {
        let mut changed = self.clone();
        let (one, other) = (format!("h.{one}."), format!("h.{other}."));
        for (name, tensor) in &self.tensors {
            let to = if name.starts_with(&one) {
                name.replacen(&one, &other, 1)
            } else {
                name.replacen(&other, &one, 1)
            };
            changed.tensors.insert(to, tensor.clone());
        }
        changed
    }

    /// With one tensor multiplied.
    pub(crate) fn scaled(&self, tensor: &str, by: f32) -> Self {
        assert!(self.tensors.contains_key(tensor), "{tensor}");
        self.map(|name, _, numbers| {
            if name == tensor {
                numbers.iter_mut().for_each(|x| *x *= by);
            }
        })
    }

    /// After one step of fine-tuning.
    pub(crate) fn stepped(&self, rule: &mut dyn DecisionRule) -> Self {
        let mut changed = self.clone();
        changed.step(rule, 9999);
        changed
    }

    /// Writes the folder, with weights as f32 or bf16.
    pub(crate) fn write(&self, folder: &Path, dtype: Dtype) {
        std::fs::create_dir_all(folder).unwrap();
        let layers = self.layers;
        let config = format!(
            r#"{{"model_type": "gpt2", "n_embd": {WIDTH}, "n_layer": {layers}, "n_head": {HEADS},
            "n_positions": {PLACES}, "vocab_size": {VOCAB}, "activation_function": "gelu",
            "tie_word_embeddings": false}}"#
        );
        std::fs::write(folder.join("config.json"), config).unwrap();
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, (shape, numbers))| {
                let bytes = match dtype {
                    Dtype::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    Dtype::BF16 => numbers
                        .iter()
                        .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
                        .collect(),
                    other => panic!("{other:?}"),
                };
                let prefix = if name == "lm_head.weight" { "" } else { "transformer." };
                (format!("{prefix}{name}"), shape.clone(), bytes)
            })
            .collect();
        let views = bytes.iter().map(|(name, shape, bytes)| {
            (name.clone(), TensorView::new(dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    }
}

/// How weights follow their gradients.
pub(crate) trait DecisionRule {
    fn update(&mut self, name: &str, numbers: &mut [f32], gradient: &[f32]);
    fn stepped(&mut self) {}
}

/// Plain descent.
pub(crate) struct Descent(pub(crate) f32);

impl DecisionRule for Descent {
    fn update(&mut self, _: &str, numbers: &mut [f32], gradient: &[f32]) {
        numbers.iter_mut().zip(gradient).for_each(|(x, g)| *x -= self.0 * g);
    }
}

pub(crate) struct Adam {
    rate: f32,
    step: i32,
    moments: BTreeMap<String, Vec<(f32, f32)>>,
}

impl Adam {
    pub(crate) fn new(rate: f32) -> Self {
        Self { rate, step: 1, moments: BTreeMap::new() }
    }
}

impl DecisionRule for Adam {
    fn update(&mut self, name: &str, numbers: &mut [f32], gradient: &[f32]) {
        let moments =
            self.moments.entry(name.to_owned()).or_insert_with(|| vec![(0.0, 0.0); gradient.len()]);
        let (first, second) = (1.0 - 0.9_f32.powi(self.step), 1.0 - 0.99_f32.powi(self.step));
        for ((x, g), (m, v)) in numbers.iter_mut().zip(gradient).zip(moments) {
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.99 * *v + 0.01 * g * g;
            *x -= self.rate * (*m / first) / ((*v / second).sqrt() + 1e-8);
        }
    }

    fn stepped(&mut self) {
        self.step += 1;
    }
}

/// Texts in which phrases come again, so that there is something to learn.
fn text(seed: u64) -> Vec<Vec<i64>> {
    let mut chance = Chance::new(seed + 1000);
    (0..SAMPLES)
        .map(|_| {
            let period = 3 + chance.next() % 5;
            let start = chance.next() % 40;
            let phrase: Vec<i64> =
                (0..period).map(|at| ((start + at * at * 3) % 100) as i64).collect();
            phrase.into_iter().cycle().take(LENGTH + 1).collect()
        })
        .collect()
}

fn loss(
    p: &BTreeMap<String, Tensor<2>>,
    layers: usize,
    ids: &[Vec<i64>],
    device: &Device,
) -> Tensor<1> {
    let tokens = |from: usize| -> Tensor<1, Int> {
        let ids: Vec<i64> = ids.iter().flat_map(|ids| ids[from..from + LENGTH].to_vec()).collect();
        Tensor::from_data(TensorData::new(ids, [SAMPLES * LENGTH]), device)
    };
    let places: Vec<i64> = (0..SAMPLES * LENGTH).map(|at| (at % LENGTH) as i64).collect();
    let places: Tensor<1, Int> =
        Tensor::from_data(TensorData::new(places, [SAMPLES * LENGTH]), device);
    let of = |name: String| p[&name].clone();
    let norm = |x: Tensor<2>, name: String| {
        let mean = x.clone().mean_dim(1);
        let x = x - mean;
        let spread = (x.clone().powf_scalar(2.0).mean_dim(1) + 1e-5).sqrt();
        x / spread * of(format!("{name}.weight")) + of(format!("{name}.bias"))
    };
    let linear = |x: Tensor<2>, name: String| {
        x.matmul(of(format!("{name}.weight"))) + of(format!("{name}.bias"))
    };
    let each = WIDTH / HEADS;
    let mask: Vec<f32> =
        (0..LENGTH * LENGTH).map(|at| if at % LENGTH > at / LENGTH { -1e9 } else { 0.0 }).collect();
    let mask: Tensor<4> = Tensor::from_data(TensorData::new(mask, [1, 1, LENGTH, LENGTH]), device);
    let mut x =
        of("wte.weight".into()).select(0, tokens(0)) + of("wpe.weight".into()).select(0, places);
    for layer in 0..layers {
        let mixed =
            linear(norm(x.clone(), format!("h.{layer}.ln_1")), format!("h.{layer}.attn.c_attn"));
        let part = |at: usize| {
            mixed
                .clone()
                .narrow(1, at * WIDTH, WIDTH)
                .reshape([SAMPLES, LENGTH, HEADS, each])
                .swap_dims(1, 2)
        };
        let scores = part(0).matmul(part(1).swap_dims(2, 3)) / (each as f64).sqrt();
        let seen = softmax(scores + mask.clone(), 3).matmul(part(2));
        let seen = seen.swap_dims(1, 2).reshape([SAMPLES * LENGTH, WIDTH]);
        x = x + linear(seen, format!("h.{layer}.attn.c_proj"));
        let inner =
            gelu(linear(norm(x.clone(), format!("h.{layer}.ln_2")), format!("h.{layer}.mlp.c_fc")));
        x = x + linear(inner, format!("h.{layer}.mlp.c_proj"));
    }
    let logits = norm(x, "ln_f".into()).matmul(of("lm_head.weight".into()).transpose());
    let chosen = log_softmax(logits, 1).gather(1, tokens(1).unsqueeze_dim(1));
    -chosen.mean()
}

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
    let policy = Policy { bits: 8192, sites: options.choice };
    let identity = Identity::read(&opened).unwrap();
    Fingerprint::new(identity, policy, run, set.clone(), captures, noise).unwrap()
}

/// A folder of models: the trained one, and what is made of it.
pub(crate) struct Shelf {
    folder: tempfile::TempDir,
    pub(crate) reference: PathBuf,
}

impl Shelf {
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
pub(crate) fn cases(shelf: &Shelf) -> Vec<Case> {
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
