//! Training of a tiny GPT: optimizers, texts to learn, and the loss.

use std::collections::BTreeMap;

use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::random::SeededRandom;
use super::{HEADS, WIDTH};

const SAMPLES: usize = 12;
const LENGTH: usize = 32;

/// How weights follow their gradients.
pub(crate) trait Optimizer {
    fn update(&mut self, name: &str, numbers: &mut [f32], gradient: &[f32]);
    fn stepped(&mut self) {}
}

/// Plain descent.
pub(crate) struct Descent(pub(crate) f32);

impl Optimizer for Descent {
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

impl Optimizer for Adam {
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
pub(super) fn text(seed: u64) -> Vec<Vec<i64>> {
    let mut random = SeededRandom::new(seed + 1000);
    (0..SAMPLES)
        .map(|_| {
            let period = 3 + random.next() % 5;
            let start = random.next() % 40;
            let phrase: Vec<i64> =
                (0..period).map(|at| ((start + at * at * 3) % 100) as i64).collect();
            phrase.into_iter().cycle().take(LENGTH + 1).collect()
        })
        .collect()
}

pub(super) fn loss(
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
