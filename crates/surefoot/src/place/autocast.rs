//! Mixed precision: heavy operations in the compute dtype, their results and everything else
//! (reductions, norms, the loss) in fp32.

use burn::tensor::Tensor;
use burn::tensor::module::{attention, conv2d, linear};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions};

use super::{Dtype, dtype_of, float_dtype};

/// Casts for one precision. With fp32 every method is the plain operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autocast {
    compute: Dtype,
}

impl Autocast {
    /// Heavy operations in `compute`.
    pub fn new(compute: Dtype) -> Self {
        Self { compute }
    }

    /// The dtype of heavy operations.
    pub fn compute(self) -> Dtype {
        self.compute
    }

    /// `x` in the compute dtype: for a heavy operation that is not listed here.
    pub fn heavy<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        cast(x, self.compute)
    }

    /// `x` in fp32: for reductions, norms and the loss.
    pub fn full<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        cast(x, Dtype::F32)
    }

    /// A matrix product.
    pub fn matmul<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        self.full(self.heavy(a).matmul(self.heavy(b)))
    }

    /// A linear layer.
    pub fn linear<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        let bias = bias.map(|bias| self.heavy(bias));
        self.full(linear(self.heavy(x), self.heavy(weight), bias))
    }

    /// A convolution of images.
    pub fn conv2d(
        self,
        x: Tensor<4>,
        weight: Tensor<4>,
        bias: Option<Tensor<1>>,
        options: ConvOptions<2>,
    ) -> Tensor<4> {
        let bias = bias.map(|bias| self.heavy(bias));
        self.full(conv2d(self.heavy(x), self.heavy(weight), bias, options))
    }

    /// Scaled dot-product attention over `[batch, heads, tokens, width]`.
    pub fn attention(
        self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        options: AttentionModuleOptions,
    ) -> Tensor<4> {
        let (query, key, value) = (self.heavy(query), self.heavy(key), self.heavy(value));
        self.full(attention(query, key, value, None, None, options))
    }
}

fn cast<const D: usize>(x: Tensor<D>, dtype: Dtype) -> Tensor<D> {
    if dtype_of(x.dtype()) == Some(dtype) { x } else { x.cast(float_dtype(dtype)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, Device, Distribution};

    #[test]
    fn results_are_fp32_whatever_was_computed_in() {
        let device = Device::flex();
        let a = Tensor::<2>::random([8, 16], Distribution::Default, &device);
        let b = Tensor::<2>::random([16, 4], Distribution::Default, &device);
        let exact = a.clone().matmul(b.clone());
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let y = Autocast::new(dtype).matmul(a.clone(), b.clone());
            assert_eq!(y.dtype(), DType::F32);
            let error = (y - exact.clone()).abs().max().into_scalar::<f32>();
            assert!(f64::from(error) < 16.0 * dtype.epsilon(), "{dtype}: {error}");
            if dtype != Dtype::F32 {
                assert!(error > 0.0, "{dtype} was not used");
            }
        }
    }

    #[test]
    fn gradients_flow_through_the_casts() {
        let device = Device::flex().autodiff();
        let a = Tensor::<2>::ones([2, 3], &device).require_grad();
        let b = Tensor::<2>::ones([3, 2], &device);
        let grads = Autocast::new(Dtype::BF16).matmul(a.clone(), b).sum().backward();
        assert_eq!(a.grad(&grads).unwrap().sum().into_scalar::<f32>(), 12.0);
    }
}
