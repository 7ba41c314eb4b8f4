//! Dropout of what low-rank pairs are applied to, as PEFT's `lora_dropout` does it.
//!
//! Which numbers are dropped depends on the seed of their row, their place in it and their projection, and on nothing else: a
//! step that is repeated, split, run with gradient checkpointing or run again by a resumed training drops the same ones.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};

use crate::random::SeededRandom;

/// The dropout of one projection in one pass.
#[derive(Clone, Debug)]
pub struct Dropout {
    /// The share of the numbers that are dropped, below 1; the others are multiplied so that their sum stays the same.
    pub share: f64,
    /// A seed for each row of the batch.
    pub rows: Arc<[u64]>,
    /// The number of the projection among those that are trained.
    pub projection: u64,
}

impl Dropout {
    /// `x`, `[inputs, columns]`, with some of its numbers dropped. Columns are those of all rows, one row after the other. If
    /// they are not (only some positions are predicted), they are counted as one row's.
    pub(crate) fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        let [inputs, columns] = x.dims();
        let rows = self.rows.len().max(1);
        let width = if columns.is_multiple_of(rows) { columns / rows } else { columns };
        let kept = (1.0 / (1.0 - self.share)) as f32;
        let mut mask = Vec::with_capacity(columns * inputs);
        for column in 0..columns {
            let row = self.rows.get(column / width.max(1)).copied().unwrap_or(0);
            let place = (column % width.max(1)) as u64;
            let mut random = SeededRandom::of(&[row, self.projection, place]);
            mask.extend((0..inputs).map(|_| if random.unit() < self.share { 0.0 } else { kept }));
        }
        let device = x.device().without_autodiff();
        let mask: Tensor<2> =
            Tensor::from_data(TensorData::new(mask, [columns, inputs]), (&device, x.dtype()));
        x * mask.transpose()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn dropped(share: f64, rows: &[u64], columns: usize) -> Vec<f32> {
        let x = Tensor::ones([50, columns], &Device::flex());
        let dropout = Dropout { share, rows: rows.into(), projection: 3 };
        dropout.apply(x).transpose().into_data().try_to_vec::<f32>().unwrap()
    }

    #[test]
    fn the_asked_share_is_dropped_and_the_rest_grows() {
        let numbers = dropped(0.25, &[1, 2], 80);
        let zeros = numbers.iter().filter(|number| **number == 0.0).count() as f64;
        assert!((zeros / numbers.len() as f64 - 0.25).abs() < 0.03, "{zeros}");
        assert!(numbers.iter().all(|number| *number == 0.0 || (number - 4.0 / 3.0).abs() < 1e-6));
    }

    #[test]
    fn a_row_drops_the_same_whatever_rows_are_beside_it_and_however_wide_they_are() {
        let both = dropped(0.5, &[7, 8], 12);
        // Numbers come column after column, 50 each.
        assert_eq!(both[..300], dropped(0.5, &[7], 6));
        assert_eq!(both[300..], dropped(0.5, &[8], 6));
        assert_eq!(both[300..450], dropped(0.5, &[8], 3), "a narrower part of the batch");
        assert_ne!(both[..300], both[300..]);
    }
}
