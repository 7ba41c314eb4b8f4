//! Initial weights that depend on the seed alone: the same on every device.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};

use crate::random::SeededRandom;

/// How matrices and kernels are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Draw {
    /// Normal, with a deviation of √(2 / inputs): keeps the size of signals through ReLU.
    He,
    /// Normal, with this deviation.
    Normal(f64),
}

struct Redraw {
    seed: u64,
    number: u64,
    draw: Draw,
    device: Device,
}

impl ModuleMapper for Redraw {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.number += 1;
        // Biases and norms have one dimension and start as 0 and 1.
        if D < 2 {
            return param;
        }
        let dims: [usize; D] = std::array::from_fn(|at| param.lazy_shape()[at]);
        // A linear layer's weight is [inputs, outputs], a kernel [outputs, inputs, rows, columns].
        let inputs = if D == 2 { dims[0] } else { dims[1..].iter().product() };
        let deviation = match self.draw {
            Draw::He => (2.0 / inputs as f64).sqrt(),
            Draw::Normal(deviation) => deviation,
        };
        let mut random = SeededRandom::of(&[self.seed, 0x1417, self.number]);
        let count = dims.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|_| (random.normal() * deviation) as f32).collect();
        let device = self.device.clone();
        param.map(|_| Tensor::from_data(TensorData::new(values, dims), &device))
    }
}

/// Draws a module's matrices and kernels anew from the seed.
pub fn redraw<M: Module>(module: M, seed: u64, device: &Device) -> M {
    redraw_as(module, seed, device, Draw::He)
}

pub(super) fn redraw_as<M: Module>(module: M, seed: u64, device: &Device, draw: Draw) -> M {
    let device = device.clone().without_autodiff();
    module.map(&mut Redraw { seed, number: 0, draw, device })
}
