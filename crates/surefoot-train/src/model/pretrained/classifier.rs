//! The head of an encoder that is trained to classify texts, as `BertForSequenceClassification` has it: the pooler over the
//! first token, and a linear layer for the classes.

use burn::module::{Module, Param};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor, TensorData};

use crate::random::SeededRandom;

/// Pooler and classes.
#[derive(Module, Debug)]
pub(crate) struct Classifier {
    /// `[hidden, hidden]`, rows are outputs; frozen unless the whole model is trained.
    pub(crate) pooler: Option<(Param<Tensor<2>>, Param<Tensor<1>>)>,
    /// `[classes, hidden]`.
    pub(crate) weight: Param<Tensor<2>>,
    pub(crate) bias: Param<Tensor<1>>,
    #[module(skip)]
    pub(crate) frozen_pooler: Option<(Vec<f32>, Vec<f32>)>,
}

impl Classifier {
    /// A classifier whose classes are drawn from the seed, as transformers draws them: normal, deviation 0.02.
    pub(crate) fn new(
        classes: usize,
        hidden: usize,
        pooler: (Vec<f32>, Vec<f32>),
        trains_pooler: bool,
        seed: u64,
        device: &Device,
    ) -> Self {
        let mut random = SeededRandom::of(&[seed, 0xc1a5]);
        let weight: Vec<f32> =
            (0..classes * hidden).map(|_| (random.normal() * 0.02) as f32).collect();
        let two = |numbers: Vec<f32>, shape: [usize; 2]| {
            Param::from_tensor(Tensor::from_data(TensorData::new(numbers, shape), device))
        };
        let one = |numbers: Vec<f32>| {
            let count = numbers.len();
            Param::from_tensor(Tensor::from_data(TensorData::new(numbers, [count]), device))
        };
        let (trained, frozen) = match trains_pooler {
            true => (Some((two(pooler.0, [hidden, hidden]), one(pooler.1))), None),
            false => (None, Some(pooler)),
        };
        Self {
            pooler: trained,
            weight: two(weight, [classes, hidden]),
            bias: one(vec![0.0; classes]),
            frozen_pooler: frozen,
        }
    }

    /// The outputs for hidden states of first tokens, `[rows, hidden]`.
    pub(crate) fn outputs(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = x.dims()[1];
        let (weight, bias) = match (&self.pooler, &self.frozen_pooler) {
            (Some((weight, bias)), _) => (weight.val(), bias.val()),
            (None, Some((weight, bias))) => {
                let device = x.device().without_autodiff();
                let weight = TensorData::new(weight.clone(), [hidden, hidden]);
                let bias = TensorData::new(bias.clone(), [hidden]);
                (Tensor::from_data(weight, &device), Tensor::from_data(bias, &device))
            }
            (None, None) => return self.classes(x),
        };
        self.classes((x.matmul(weight.transpose()) + bias.unsqueeze()).tanh())
    }

    fn classes(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val().transpose()) + self.bias.val().unsqueeze()
    }

    /// The names of its parameters in transformers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let pooler = ["bert.pooler.dense.weight", "bert.pooler.dense.bias"];
        let trained = self.pooler.iter().flat_map(move |_| pooler);
        trained.chain(["classifier.weight", "classifier.bias"])
    }

    pub(crate) fn strategy(&self) -> Option<GradientCheckpointingStrategy> {
        self.weight.val().gradient_checkpointing_strategy()
    }
}
