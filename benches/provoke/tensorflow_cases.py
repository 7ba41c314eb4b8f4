"""TensorFlow on the CPU, used wrongly."""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

from provoke import case


@case("shape_mismatch")
def matmul(): tf.matmul(tf.ones((2, 3)), tf.ones((4, 5)))

@case("shape_mismatch")
def add(): tf.ones(3) + tf.ones(4)

@case("shape_mismatch")
def concat(): tf.concat([tf.ones((2, 3)), tf.ones((2, 4))], 0)

@case("shape_mismatch")
def reshape(): tf.reshape(tf.ones(6), (4, 2))

@case("shape_mismatch")
def dense_width():
    m = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)]); m(tf.ones((1, 5)))

@case("shape_mismatch")
def conv_channels(): tf.nn.conv2d(tf.ones((1, 8, 8, 3)), tf.ones((3, 3, 4, 8)), 1, "SAME")

@case("shape_mismatch")
def labels_and_logits(): tf.nn.softmax_cross_entropy_with_logits(tf.ones((2, 3)), tf.ones((2, 4)))

@case("shape_mismatch")
def fit_cardinality():
    m = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)]); m.compile(loss="mse"); m.fit(np.ones((4, 4)), np.ones((5, 2)), verbose=0)

@case("dtype_mismatch")
def add_dtypes(): tf.ones(2) + tf.ones(2, tf.int32)

@case("dtype_mismatch")
def matmul_dtypes(): tf.matmul(tf.ones((2, 2)), tf.ones((2, 2), tf.float64))

@case("dtype_mismatch")
def assign_dtype(): tf.Variable(tf.ones(2)).assign(tf.ones(2, tf.float64))

@case("dtype_mismatch")
def gather_index(): tf.gather(tf.ones(3), tf.ones(1))

@case("unsupported_dtype")
def bitwise_float(): tf.bitwise.bitwise_and(tf.ones(2), tf.ones(2))

@case("unsupported_dtype")
def string_sqrt(): tf.sqrt(tf.constant(["a"]))

@case("driver_or_init")
def no_gpu():
    tf.debugging.set_log_device_placement(False); tf.config.set_soft_device_placement(False)
    with tf.device("/GPU:0"): tf.ones(1) + 1

@case("out_of_memory")
def allocation(): tf.ones((1 << 20, 1 << 22))

@case("numeric")
def check_numerics(): tf.debugging.check_numerics(tf.constant([float("nan")]), "loss")

@case("numeric")
def enabled_check():
    tf.debugging.enable_check_numerics(); tf.math.log(tf.constant([-1.0]))

@case("numeric")
def singular(): tf.linalg.inv(tf.zeros((2, 2)))

@case("model_loading")
def missing_model(): tf.keras.models.load_model("/no/such/model.keras")

@case("model_loading")
def garbage_model():
    path = tempfile.mktemp(suffix=".keras"); open(path, "wb").write(b"not a model"); tf.keras.models.load_model(path)

@case("model_loading")
def weights_of_another():
    path = tempfile.mktemp(suffix=".weights.h5")
    tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)]).save_weights(path)
    tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3)]).load_weights(path)

@case("model_loading")
def saved_model_missing(): tf.saved_model.load("/no/such/folder")

@case("data_loading")
def dataset_decode():
    next(iter(tf.data.Dataset.from_tensors(b"not an image").map(lambda b: tf.io.decode_png(b))))

@case("not_device_related")
def graph_bool():
    @tf.function(autograph=False)
    def f(x): return 1 if x > 0 else 2
    f(tf.constant(1.0))

@case("not_device_related")
def item_assignment():
    x = tf.ones(3); x[0] = 1

@case("not_device_related")
def optimizer_name(): tf.keras.optimizers.get("no_such_optimizer")

@case("not_device_related")
def gather_range(): tf.gather(tf.ones(3), 5)
