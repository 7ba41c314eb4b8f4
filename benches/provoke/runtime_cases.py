"""OpenVINO, Paddle, Numba, MLX and safetensors, each where it is installed."""

import tempfile

import numpy as np

from provoke import case


@case("model_loading")
def openvino_missing():
    import openvino; openvino.Core().read_model("/no/such/model.xml")

@case("model_loading")
def openvino_garbage():
    import openvino; path = tempfile.mktemp(suffix=".onnx"); open(path, "wb").write(b"nothing"); openvino.Core().read_model(path)

def openvino_model(shape=(2, 3)):
    from openvino import Model, opset13 as op
    x = op.parameter(shape, np.float32); return Model([op.relu(x)], [x])

@case("driver_or_init")
def openvino_gpu():
    import openvino; openvino.Core().compile_model(openvino_model(), "GPU")

@case("driver_or_init")
def openvino_npu():
    import openvino; openvino.Core().compile_model(openvino_model(), "NPU")

@case("driver_or_init")
def openvino_unknown_device():
    import openvino; openvino.Core().compile_model(openvino_model(), "XYZ")

@case("shape_mismatch")
def openvino_shape():
    import openvino; openvino.Core().compile_model(openvino_model(), "CPU")([np.ones((4, 5, 6), np.float32)])

@case("shape_mismatch")
def openvino_graph():
    from openvino import opset13 as op; op.matmul(op.parameter((2, 3), np.float32), op.parameter((4, 5), np.float32), False, False)

@case("dtype_mismatch")
def openvino_types():
    from openvino import opset13 as op; op.add(op.parameter((2,), np.float32), op.parameter((2,), np.int32))

@case("shape_mismatch")
def paddle_matmul():
    import paddle; paddle.matmul(paddle.ones((2, 3)), paddle.ones((4, 5)))

@case("shape_mismatch")
def paddle_add():
    import paddle; paddle.ones((2, 3)) + paddle.ones((2, 4))

@case("driver_or_init")
def paddle_gpu():
    import paddle; paddle.set_device("gpu:0"); paddle.ones((1,))

@case("dtype_mismatch")
def paddle_dtypes():
    import paddle; paddle.matmul(paddle.ones((2, 2)), paddle.ones((2, 2), dtype="float64"))

@case("model_loading")
def paddle_missing():
    import paddle; paddle.load("/no/such/model.pdparams")

@case("out_of_memory")
def paddle_allocation():
    import paddle; paddle.ones((1 << 20, 1 << 22))

@case("unsupported_dtype")
def paddle_svd_int():
    import paddle; paddle.linalg.svd(paddle.ones((2, 2), dtype="int32"))

@case("shape_mismatch")
def paddle_reshape():
    import paddle; paddle.reshape(paddle.ones((6,)), (4, 2))

@case("kernel_compile")
def numba_type():
    import numba
    numba.njit(lambda x: x + "a")(1)

@case("kernel_compile")
def numba_unsupported():
    import numba
    @numba.njit
    def f(x): return sorted({"a": x}, key=lambda k: k)
    f(1)

@case("driver_or_init")
def numba_cuda():
    from numba import cuda; cuda.to_device(np.ones(3))

@case("shape_mismatch")
def mlx_matmul():
    import mlx.core as mx; mx.eval(mx.ones((2, 3)) @ mx.ones((4, 5)))

@case("shape_mismatch")
def mlx_add():
    import mlx.core as mx; mx.eval(mx.ones(3) + mx.ones(4))

@case("shape_mismatch")
def mlx_reshape():
    import mlx.core as mx; mx.eval(mx.reshape(mx.ones(6), (4, 2)))

@case("unsupported_dtype")
def mlx_int_inverse():
    import mlx.core as mx; mx.eval(mx.linalg.inv(mx.ones((2, 2), mx.int32)))

@case("driver_or_init")
def mlx_gpu():
    import mlx.core as mx; mx.eval(mx.add(mx.ones(2), 1, stream=mx.gpu))

@case("model_loading")
def mlx_load():
    import mlx.core as mx; mx.load("/no/such/model.safetensors")

@case("model_loading")
def safetensors_garbage():
    from safetensors.numpy import load; load(b"\xff" * 64)

@case("model_loading")
def safetensors_truncated():
    from safetensors.numpy import load, save; load(save({"w": np.ones(100, np.float32)})[:-50])

@case("model_loading")
def safetensors_short():
    from safetensors.numpy import load; load(b"ab")

@case("out_of_memory")
def numpy_allocation(): np.ones((1 << 24, 1 << 20))

@case("shape_mismatch")
def numpy_broadcast(): np.ones((2, 3)) + np.ones((2, 4))

@case("shape_mismatch")
def numpy_matmul(): np.ones((2, 3)) @ np.ones((4, 5))

@case("numeric")
def numpy_singular(): np.linalg.inv(np.zeros((2, 2)))

@case("driver_or_init")
def xgboost_gpu():
    import xgboost as xgb; xgb.train({"device": "cuda"}, xgb.DMatrix(np.ones((4, 2)), label=np.ones(4)), 1)

@case("shape_mismatch")
def xgboost_columns():
    import xgboost as xgb
    b = xgb.train({}, xgb.DMatrix(np.random.rand(8, 2), label=np.ones(8)), 1); b.predict(xgb.DMatrix(np.ones((4, 3))))
