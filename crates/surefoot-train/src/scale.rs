//! Loss scaling: gradients in fp16 are multiplied by a factor so that they don't underflow to 0.

use serde::{Deserialize, Serialize};
use surefoot::place::Dtype;

/// Doubled after this many good steps in a row.
const PATIENCE: u32 = 2000;
const FIRST: f64 = 65_536.0;
const LARGEST: f64 = 16_777_216.0;

/// The factor of the loss. Always a power of two, so that taking it out again is exact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    factor: f64,
    good_steps: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { factor: FIRST, good_steps: 0 }
    }
}

impl LossScale {
    /// The factor for a step in this dtype: 1 unless its range is small.
    pub fn factor(&self, compute: Dtype) -> f64 {
        if compute == Dtype::F16 { self.factor } else { 1.0 }
    }

    /// The scale after a step: halved if it overflowed, doubled after a long good run.
    #[must_use]
    pub fn after(mut self, compute: Dtype, finite: bool) -> Self {
        if compute != Dtype::F16 {
            return self;
        }
        if !finite {
            self.factor /= 2.0;
            self.good_steps = 0;
        } else {
            self.good_steps += 1;
            if self.good_steps >= PATIENCE {
                self.factor = (self.factor * 2.0).min(LARGEST);
                self.good_steps = 0;
            }
        }
        self
    }

    /// Whether the scale is so low that one more overflow is not its fault.
    pub fn is_last_try(&self) -> bool {
        self.factor <= 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_halves_on_overflow_grows_with_patience_and_leaves_other_dtypes_alone() {
        let start = LossScale::default();
        assert_eq!(start.factor(Dtype::BF16), 1.0);
        assert_eq!(start.after(Dtype::F32, false), start);
        let mut scale = start.after(Dtype::F16, false);
        assert_eq!(scale.factor(Dtype::F16), 32_768.0);
        for _ in 0..PATIENCE {
            scale = scale.after(Dtype::F16, true);
        }
        assert_eq!(scale.factor(Dtype::F16), 65_536.0);
        for _ in 0..16 {
            assert!(!scale.is_last_try());
            scale = scale.after(Dtype::F16, false);
        }
        assert!(scale.is_last_try());
    }
}
