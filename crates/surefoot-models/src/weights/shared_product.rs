//! Products on the processor with rows that stay as they are stored, also in a mapped file, by the kernels of `surefoot-quant`.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use surefoot_quant::BlockFormat;
use surefoot_quant::product::SharedRows;

/// The product of `rows` × `cols` numbers in `memory`, whose rows are outputs, with `x`, `[cols, columns]`. What it
/// gives lies column after column, as the next product wants it. `x` is given back where the kernels don't take it.
#[allow(clippy::result_large_err, reason = "what could not be used is given back")]
pub(crate) fn shared_product(
    memory: &bytes::Bytes,
    format: BlockFormat,
    [rows, cols]: [usize; 2],
    x: Tensor<2>,
) -> Result<Tensor<2>, Tensor<2>> {
    if x.is_autodiff() {
        return Err(x);
    }
    let columns = x.dims()[1];
    let Ok(weights) = SharedRows::new(format, rows, cols, memory.clone()) else { return Err(x) };
    let x = x.transpose().into_data();
    if x.dtype() != DType::F32 {
        return Err(Tensor::<2>::from_data(x, &Device::flex()).transpose());
    }
    // Its dtype was looked at, so these are all its numbers.
    let x = Arc::new(x.try_into_vec::<f32>().unwrap_or_default());
    match weights.times(&x, columns) {
        Ok(y) => {
            let y: Tensor<2> =
                Tensor::from_data(TensorData::new(y, [columns, rows]), &Device::flex());
            Ok(y.transpose())
        }
        Err(_) => {
            let x = Arc::unwrap_or_clone(x);
            let inputs = x.len() / columns.max(1);
            let x = TensorData::new(x, [columns, inputs]);
            Err(Tensor::<2>::from_data(x, &Device::flex()).transpose())
        }
    }
}
