"""ONNX Runtime on the CPU, used wrongly."""

import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from provoke import case


def model(op="MatMul", shapes=((2, 3), (3, 4)), out=(2, 4), dtype=TensorProto.FLOAT, opset=17, **attributes):
    inputs = [helper.make_tensor_value_info(f"x{i}", dtype, s) for i, s in enumerate(shapes)]
    node = helper.make_node(op, [f"x{i}" for i in range(len(shapes))], ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", dtype, out)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9).SerializeToString()

def session(data, **kw): return ort.InferenceSession(data, **(kw or {"providers": ["CPUExecutionProvider"]}))

@case("shape_mismatch")
def fed_shape(): session(model()).run(None, {"x0": np.ones((2, 5), np.float32), "x1": np.ones((3, 4), np.float32)})

@case("shape_mismatch")
def fed_rank(): session(model()).run(None, {"x0": np.ones(3, np.float32), "x1": np.ones((3, 4), np.float32)})

@case("shape_mismatch")
def dynamic_matmul():
    data = model(shapes=(("a", "b"), ("c", "d")), out=("a", "d"))
    session(data).run(None, {"x0": np.ones((2, 3), np.float32), "x1": np.ones((4, 5), np.float32)})

@case("shape_mismatch")
def dynamic_add():
    data = model("Add", shapes=(("a",), ("b",)), out=("c",))
    session(data).run(None, {"x0": np.ones(3, np.float32), "x1": np.ones(4, np.float32)})

@case("shape_mismatch")
def dynamic_concat():
    data = model("Concat", shapes=(("a", "b"), ("c", "d")), out=("e", "f"), axis=0)
    session(data).run(None, {"x0": np.ones((2, 3), np.float32), "x1": np.ones((2, 4), np.float32)})

@case("dtype_mismatch")
def fed_dtype(): session(model()).run(None, {"x0": np.ones((2, 3)), "x1": np.ones((3, 4), np.float32)})

@case("dtype_mismatch")
def fed_half(): session(model()).run(None, {"x0": np.ones((2, 3), np.float16), "x1": np.ones((3, 4), np.float32)})

@case("dtype_mismatch")
def typed_graph():
    a = helper.make_tensor_value_info("x0", TensorProto.FLOAT, [2]); b = helper.make_tensor_value_info("x1", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Add", ["x0", "x1"], ["y"])], "g", [a, b], [y])
    session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString())

@case("unsupported_op")
def unknown_op(): session(model("NoSuchOperator"))

@case("unsupported_op")
def custom_domain():
    x = helper.make_tensor_value_info("x0", TensorProto.FLOAT, [2]); y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("FastGelu9", ["x0"], ["y"], domain="com.example")], "g", [x], [y])
    session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)], ir_version=9).SerializeToString())

@case("unsupported_dtype")
def matmul_int8_type(): session(model(dtype=TensorProto.BOOL))

@case("unsupported_dtype")
def bfloat16_softmax(): session(model("Erf", shapes=((2,),), out=(2,), dtype=TensorProto.BFLOAT16))

@case("model_loading")
def garbage(): session(b"this is no model")

@case("model_loading")
def missing_file(): ort.InferenceSession("/no/such/model.onnx", providers=["CPUExecutionProvider"])

@case("model_loading")
def truncated(): session(model()[:40])

@case("model_loading")
def future_opset(): session(model(opset=99))

@case("model_loading")
def external_data_missing():
    w = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], np.ones((64, 64), np.float32).tobytes(), raw=True)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64]); y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 64])
    m = helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = tempfile.mkdtemp()
    onnx.save(m, f"{folder}/m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    import os; os.remove(f"{folder}/weights.bin")
    session(f"{folder}/m.onnx")

@case("out_of_memory")
def huge_output():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]); s = helper.make_tensor_value_info("s", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])
    m = helper.make_model(helper.make_graph([helper.make_node("Expand", ["x", "s"], ["y"])], "g", [x, s], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session(m.SerializeToString()).run(None, {"x": np.ones(1, np.float32), "s": np.array([1 << 24, 1 << 22], np.int64)})

@case("not_device_related")
def wrong_input_name(): session(model()).run(None, {"input": np.ones((2, 3), np.float32)})

@case("not_device_related")
def wrong_output_name(): session(model()).run(["logits"], {"x0": np.ones((2, 3), np.float32), "x1": np.ones((3, 4), np.float32)})

@case("not_device_related")
def missing_input(): session(model()).run(None, {"x0": np.ones((2, 3), np.float32)})

@case("shape_mismatch")
def gather_out_of_range():
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [1]); x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2]); y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])
    m = helper.make_model(helper.make_graph([helper.make_node("Reshape", ["x", "i"], ["y"])], "g", [x, i], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session(m.SerializeToString()).run(None, {"x": np.ones((4, 2), np.float32), "i": np.array([5], np.int64)})
