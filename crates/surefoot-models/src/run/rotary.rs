//! Applies rotary positions to queries and keys.

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;

use crate::arch::rope::Rope;

/// Positions whose angles are worth several threads.
const WORTH_THREADS: usize = 256;

/// Cosines and sines of each position, a number for each pair.
pub(super) fn table_numbers(rope: &Rope, positions: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let of_position = |position: &usize| {
        let position = *position as f32;
        rope.frequencies.iter().map(move |frequency| {
            let angle = position * frequency;
            (angle.cos() * rope.factor, angle.sin() * rope.factor)
        })
    };
    match positions.len() < WORTH_THREADS {
        true => positions.iter().flat_map(of_position).unzip(),
        false => positions.par_iter().flat_map_iter(of_position).unzip(),
    }
}

/// Cosines and sines for the positions of one pass: `[batch or 1, 1, width, pairs]`.
#[derive(Clone)]
pub(crate) struct Rotation {
    cos: Tensor<4>,
    sin: Tensor<4>,
    dims: usize,
    interleaved: bool,
}

impl Rotation {
    /// The tables for `positions`, `rows` rows of equal length.
    pub(crate) fn new(rope: &Rope, positions: &[usize], rows: usize, device: &Device) -> Self {
        let (cos, sin) = table_numbers(rope, positions);
        let shape = [rows, 1, positions.len() / rows, rope.frequencies.len()];
        Self {
            cos: Tensor::from_data(TensorData::new(cos, shape), device),
            sin: Tensor::from_data(TensorData::new(sin, shape), device),
            dims: rope.dims(),
            interleaved: rope.interleaved,
        }
    }

    /// The same of tables that are on the device, one position for each row.
    pub(super) fn of_tables(rope: &Rope, cos: Tensor<1>, sin: Tensor<1>) -> Self {
        let pairs = rope.frequencies.len();
        let shape = [cos.dims()[0] / pairs.max(1), 1, 1, pairs];
        let (cos, sin) = (cos.reshape(shape), sin.reshape(shape));
        Self { cos, sin, dims: rope.dims(), interleaved: rope.interleaved }
    }

    /// Cosines and sines.
    pub(super) fn tables(&self) -> (&Tensor<4>, &Tensor<4>) {
        (&self.cos, &self.sin)
    }

    /// Whether pairs are neighbours.
    pub(super) fn interleaved(&self) -> bool {
        self.interleaved
    }

    /// Rotates `[batch, heads, width, head_dim]`: each dimension of the first half of what is
    /// rotated goes with its like in the second. Where pairs are neighbours they are brought into that
    /// order, and stay in it: queries and keys have the same, and their products are what counts.
    pub(crate) fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        if let Some(turned) = surefoot_ops::rotate(&x, &self.cos, &self.sin, self.interleaved) {
            return turned;
        }
        let [batch, heads, width, head_dim] = x.dims();
        let half = self.dims / 2;
        let x = if self.interleaved {
            let pairs = x.clone().narrow(3, 0, self.dims).reshape([batch, heads, width, half, 2]);
            let halves = pairs.swap_dims(3, 4).reshape([batch, heads, width, self.dims]);
            match self.dims < head_dim {
                true => Tensor::cat(vec![halves, x.narrow(3, self.dims, head_dim - self.dims)], 3),
                false => halves,
            }
        } else {
            x
        };
        let first = x.clone().narrow(3, 0, half);
        let second = x.clone().narrow(3, half, half);
        let turned = first.clone() * self.cos.clone() - second.clone() * self.sin.clone();
        let other = second * self.cos.clone() + first * self.sin.clone();
        let mut parts = vec![turned, other];
        if self.dims < head_dim {
            parts.push(x.narrow(3, self.dims, head_dim - self.dims));
        }
        Tensor::cat(parts, 3)
    }
}
