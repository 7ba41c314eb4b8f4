//! Weights times activations, where the weights are large and the columns are few.
//!
//! On the CPU the weights are read once, in place (`surefoot_kernels::product`). With more than [`MOST_COLUMNS`] columns these are packed
//! and the weights are still read in place (`dense`).

#[cfg(any(feature = "gpu", target_os = "macos"))]
mod learned;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Slice, Tensor};
use burn_flex::FlexTensor;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;
use surefoot_kernels::processor::has_vectors;
use surefoot_kernels::product::{ALIKE_COLUMNS, MOST_COLUMNS, Matrix, multiply};

use crate::{dense, flat, shapes};

/// The backends' side of [`product`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Product: Backend {
    /// See [`product`].
    fn multiplied(
        weight: FloatTensor<Self>,
        transposed: bool,
        x: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        composed::<Self>(weight, transposed, x)
    }

    /// See [`matmul`].
    fn matrices(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(left, right)
    }
}

/// `weight · x`, or with the weight transposed, `weightᵀ · x`. The weight may be in half precision where the device computes in it; `x` is
/// rounded to the weight's dtype. The result is in that dtype or in f32.
pub fn product(weight: Tensor<2>, transposed: bool, x: Tensor<2>) -> Tensor<2> {
    let [rows, columns] = weight.dims();
    let left = if transposed { [columns, rows] } else { [rows, columns] };
    shapes::assert_product("product", left, x.dims());
    point(Point::Operation);
    let (weight, x) = (weight.into_dispatch(), x.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Product>::multiplied(weight, transposed, x))
}

/// `left · right`, of matrices or of batches of them. Unlike Burn's product it rounds no number in f32 to TF32 on GPUs, unless
/// [`allow_tf32`](crate::allow_tf32) says so; nor do its gradients.
pub fn matmul<const D: usize>(left: Tensor<D>, right: Tensor<D>) -> Tensor<D> {
    point(Point::Operation);
    let (left, right) = (left.into_dispatch(), right.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Product>::matrices(left, right))
}

fn composed<B: Backend>(
    weight: FloatTensor<B>,
    transposed: bool,
    x: FloatTensor<B>,
) -> FloatTensor<B> {
    let weight = if transposed { B::float_swap_dims(weight, 0, 1) } else { weight };
    let dtype = weight.dtype();
    let x = if x.dtype() == dtype { x } else { B::float_cast(x, dtype.into()) };
    B::float_matmul(weight, x)
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Product for burn::backend::Cube {
    fn multiplied(
        weight: FloatTensor<Self>,
        transposed: bool,
        x: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let weight = if transposed { Self::float_swap_dims(weight, 0, 1) } else { weight };
        <Self as crate::cube::CubeKernels>::weight_product(weight, x)
    }

    fn matrices(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as crate::cube::CubeKernels>::product(left, right)
    }
}

impl<C: CheckpointStrategy> Product for Autodiff<Flex, C> {}

impl Product for Flex {
    fn multiplied(weight: FlexTensor, transposed: bool, x: FlexTensor) -> FlexTensor {
        if !(flat::is_ours(&weight) && flat::is_ours(&x)) {
            return match has_vectors() {
                true => composed::<Self>(weight, transposed, x),
                false => column_by_column(weight, transposed, x),
            };
        }
        if x.shape()[1] <= MOST_COLUMNS && weight.layout().contiguous_offsets().is_some() {
            return few_columns(&weight, transposed, x);
        }
        let weight = if transposed { Self::float_swap_dims(weight, 0, 1) } else { weight };
        dense::product(weight, x, |_, _| ())
    }
}

/// Burn's product, whose sums depend on the number of columns: up to [`ALIKE_COLUMNS`] are multiplied one at a time.
fn column_by_column(weight: FlexTensor, transposed: bool, x: FlexTensor) -> FlexTensor {
    let count = x.shape()[1];
    if !(2..=ALIKE_COLUMNS).contains(&count) {
        return composed::<Flex>(weight, transposed, x);
    }
    let column = |at: usize| {
        let column = Flex::float_slice(x.clone(), &[Slice::full(), (at..at + 1).into()]);
        composed::<Flex>(weight.clone(), transposed, column)
    };
    Flex::float_cat((0..count).map(column).collect(), 1)
}

fn few_columns(weight: &FlexTensor, transposed: bool, x: FlexTensor) -> FlexTensor {
    let x = flat::contiguous(x);
    let ([stored, width], [inputs, columns]) = (flat::dims(weight), flat::dims(&x));
    let rows = if transposed { width } else { stored };
    let weights = Matrix { numbers: flat::numbers(weight), width, transposed };
    flat::tensor(multiply(&weights, rows, flat::numbers(&x), [inputs, columns]), [rows, columns])
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Small integers, so that every order of sums gives the same.
        #[test]
        fn a_product_is_what_the_numbers_say(
            rows in 1_usize..70,
            inputs in 1_usize..150,
            columns in 1_usize..140,
            many in any::<bool>(),
            transposed in any::<bool>(),
            seed in 0_usize..1000,
        ) {
            // Many rows are shared out.
            let rows = if many { rows * 37 } else { rows };
            let number = |at: usize| ((at * 7 + at / 5 + seed) % 9) as f32 - 4.0;
            let shape = if transposed { [inputs, rows] } else { [rows, inputs] };
            let tensor = |shape: [usize; 2], from: usize| {
                let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|at| number(at + from)).collect();
                Tensor::<2>::from_data(TensorData::new(numbers, shape), &Device::flex())
            };
            let (weight, x) = (tensor(shape, 0), tensor([inputs, columns], 3));
            let plain = if transposed { weight.clone().transpose() } else { weight.clone() };
            let numbers = |tensor: Tensor<2>| tensor.into_data().try_to_vec::<f32>().unwrap();
            let expected = numbers(plain.matmul(x.clone()));
            prop_assert_eq!(numbers(product(weight, transposed, x)), expected);
        }
    }

    #[test]
    fn up_to_eight_columns_give_the_bits_that_each_gives_alone() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut tensor = |shape: [usize; 2]| {
            let numbers: Vec<f32> =
                (0..shape[0] * shape[1]).map(|_| random.f32() * 2.0 - 1.0).collect();
            Tensor::<2>::from_data(TensorData::new(numbers, shape), &Device::flex())
        };
        // Few rows are one part; many are shared out differently by the number of columns.
        for (rows, inputs) in [(5, 7), (50, 150), (97, 333), (2111, 520)] {
            for transposed in [false, true] {
                let weight = tensor(if transposed { [inputs, rows] } else { [rows, inputs] });
                let x = tensor([inputs, crate::ALIKE_COLUMNS]);
                let alone: Vec<_> = (0..crate::ALIKE_COLUMNS)
                    .map(|at| product(weight.clone(), transposed, x.clone().narrow(1, at, 1)))
                    .collect();
                for columns in 2..=crate::ALIKE_COLUMNS {
                    let together =
                        product(weight.clone(), transposed, x.clone().narrow(1, 0, columns));
                    let expected = Tensor::cat(alone[..columns].to_vec(), 1).into_data();
                    assert_eq!(together.into_data(), expected, "{rows}, {inputs}, {columns}");
                }
            }
        }
    }

    /// Speculation relies on it on every processor.
    #[test]
    fn up_to_eight_columns_are_alike_without_vectors_too() {
        let tests = std::env::current_exe().unwrap();
        let name = "product::tests::up_to_eight_columns_give_the_bits_that_each_gives_alone";
        let run = std::process::Command::new(tests)
            .args(["--exact", name])
            .env("SUREFOOT_CPU", "portable")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && told.contains("1 passed"), "{told}");
    }

    #[test]
    fn a_part_of_a_weight_and_a_transposed_x_are_taken_as_they_are() {
        let tensor = |shape: [usize; 2]| {
            let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|at| (at % 11) as f32).collect();
            Tensor::<2>::from_data(TensorData::new(numbers, shape), &Device::flex())
        };
        let (weight, x) = (tensor([40, 64]).narrow(0, 7, 20), tensor([6, 64]).transpose());
        let expected = weight.clone().matmul(x.clone()).into_data();
        assert_eq!(product(weight, false, x).into_data(), expected);
    }
}
