//! Rows of a table by their numbers. The table's gradient is Burn's own on the processor; on devices of CubeCL that adds up
//! one token after another, and a kernel of ours does all rows at once.

#[cfg(any(feature = "gpu", target_os = "macos"))]
use burn::backend::Cube;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{IndexingUpdateOp, Int, Shape, Tensor};
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

/// The backends' side of [`embedding`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Embedding: Backend {
    /// See [`embedding`].
    fn looked_up(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        Self::float_select(table, 0, ids)
    }
}

/// The rows of `table` with these numbers, which must be there.
pub fn embedding(table: Tensor<2>, ids: Tensor<1, Int>) -> Tensor<2> {
    point(Point::Operation);
    let (table, ids) = (table.into_dispatch(), ids.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Embedding>::looked_up(table, ids))
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// The gradient by a table of `rows` rows.
    fn backward(
        ids: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        rows: usize,
    ) -> FloatTensor<Self> {
        composed_gradient::<Self>(ids, gradient, rows)
    }
}

fn composed_gradient<B: Backend>(
    ids: IntTensor<B>,
    gradient: FloatTensor<B>,
    rows: usize,
) -> FloatTensor<B> {
    let shape = Shape::new([rows, gradient.shape()[1]]);
    let zeros = B::float_zeros(shape, &gradient.device(), gradient.dtype().into());
    B::float_select_assign(zeros, 0, ids, gradient, IndexingUpdateOp::Add)
}

impl Kernels for Flex {}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn backward(
        ids: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        rows: usize,
    ) -> FloatTensor<Self> {
        let ours = crate::cube::is_ours(&gradient) && ids.dtype() == burn::tensor::DType::I32;
        match ours {
            true => <Self as crate::cube::CubeKernels>::table_gradient(ids, gradient, rows),
            false => composed_gradient::<Self>(ids, gradient, rows),
        }
    }
}

impl Embedding for Flex {}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Embedding for Cube {}

impl<B: Kernels, C: CheckpointStrategy> Embedding for Autodiff<B, C> {
    fn looked_up(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        let rows = table.primitive().shape()[0];
        let prep = TableBackward.prepare::<C>([table.node()]).compute_bound().stateful();
        let out = B::float_select(table.into_primitive(), 0, ids.clone());
        match prep {
            OpsKind::Tracked(prep) => prep.finish((ids, rows), out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }
}

#[derive(Debug)]
struct TableBackward;

impl<B: Kernels> Backward<B, 1> for TableBackward {
    type State = (IntTensor<B>, usize);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<B>(&ops.node);
        let (ids, rows) = ops.state;
        let [parent] = ops.parents;
        if let Some(node) = parent {
            grads.register::<B>(node.id, B::backward(ids, gradient, rows));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agree;
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn values_and_gradients_are_those_of_burns_selection(
            seed in any::<u64>(),
            rows in 1usize..9,
            width in 1usize..20,
            ids in prop::collection::vec(0i32..1000, 1..40),
        ) {
            let ids: Vec<i32> = ids.into_iter().map(|id| id % rows as i32).collect();
            let ids = |device: &Device| {
                Tensor::<1, Int>::from_data(TensorData::new(ids.clone(), [ids.len()]), device)
            };
            agree(
                seed,
                &[rows * width],
                |t| {
                    let table = t[0].clone().reshape([rows, width]);
                    embedding(table, ids(&t[0].device())).flatten(0, 1)
                },
                |t| {
                    let table = t[0].clone().reshape([rows, width]);
                    table.select(0, ids(&t[0].device())).flatten(0, 1)
                },
            )?;
        }
    }
}
