//! Products whose sizes no kernel here takes, by Burn's kernels.
//!
//! For f32 Burn prefers matrix units, which round both factors to TF32 on devices that have them. Where that is not allowed
//! ([`crate::allow_tf32`]) the kernel without matrix units is launched, which is the one that Burn takes on every other device.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::kernel::matmul::init_matmul_output;
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::{launch::launch_ref, multi_level, strategy::Strategy};
use cubek::std::InputBinding;

/// `left · right`, of matrices or of batches of them.
pub(super) fn product(left: CubeTensor, right: CubeTensor) -> CubeTensor {
    let are_f32 = [&left, &right].iter().all(|side| side.dtype() == DType::F32);
    let in_f32 = are_f32 && !crate::tf32_is_allowed();
    in_f32
        .then(|| without_matrix_units(&left, &right))
        .flatten()
        .unwrap_or_else(|| <CubeBackend as FloatTensorOps<CubeBackend>>::float_matmul(left, right))
}

/// None if the kernel can't be launched for these operands.
fn without_matrix_units(left: &CubeTensor, right: &CubeTensor) -> Option<CubeTensor> {
    let out = init_matmul_output(left, right, DType::F32);
    let number = ElemType::Float(FloatKind::F32);
    let numbers = MatmulGlobalElems { lhs: number, rhs: number, out: number };
    let side = |tensor: &CubeTensor| InputBinding::new(tensor.clone().binding(), number);
    launch_ref(
        &Strategy::MultiLevel(multi_level::Strategy::SimpleUnit(Default::default())),
        &out.client,
        side(left),
        side(right),
        out.clone().binding(),
        &mut MatmulElems::from_globals(&numbers),
    )
    .ok()?;
    Some(out)
}
