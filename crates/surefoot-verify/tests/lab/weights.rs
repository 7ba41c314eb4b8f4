//! The weights of a tiny GPT, made from a seed, changed, and written as a folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::random::SeededRandom;
use super::training::{Adam, Optimizer, loss, text};
use super::{HEADS, PLACES, VOCAB, WIDTH};

/// Weights by name: `[inputs, outputs]` matrices and vectors, as GPT-2 stores them.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) layers: usize,
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Weights {
    /// Drawn from `seed`.
    pub(crate) fn new(seed: u64, layers: usize) -> Self {
        let mut random = SeededRandom::new(seed);
        let mut tensors = BTreeMap::new();
        let mut matrix = |name: String, rows: usize, cols: usize, size: f32| {
            let numbers = (0..rows * cols).map(|_| random.normal() * size).collect();
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
    pub(crate) fn step(&mut self, optimizer: &mut dyn Optimizer, seed: u64) -> f32 {
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
            optimizer.update(name, numbers, &gradient);
        }
        optimizer.stepped();
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
            let mut random = SeededRandom::new(77);
            let (rows, cols) = (shape[0], shape[1]);
            let a: Vec<f32> = (0..rows * rank).map(|_| random.normal()).collect();
            let b: Vec<f32> = (0..rank * cols).map(|_| random.normal()).collect();
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
    pub(crate) fn stepped(&self, optimizer: &mut dyn Optimizer) -> Self {
        let mut changed = self.clone();
        changed.step(optimizer, 9999);
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
