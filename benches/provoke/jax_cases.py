"""JAX on the CPU, used wrongly."""

import jax
import jax.numpy as jnp
import numpy as np

from provoke import case


@case("shape_mismatch")
def dot(): jnp.ones((2, 3)) @ jnp.ones((4, 5))

@case("shape_mismatch")
def add(): jnp.ones(3) + jnp.ones(4)

@case("shape_mismatch")
def concatenate(): jnp.concatenate([jnp.ones((2, 3)), jnp.ones((2, 4))])

@case("shape_mismatch")
def reshape(): jnp.ones(6).reshape(4, 2)

@case("shape_mismatch")
def vmap_sizes(): jax.vmap(lambda a, b: a + b)(jnp.ones(3), jnp.ones(4))

@case("shape_mismatch")
def scan_carry(): jax.lax.scan(lambda c, x: (jnp.ones(3), x), jnp.ones(2), jnp.ones(4))

@case("shape_mismatch")
def conv(): jax.lax.conv(jnp.ones((1, 3, 8, 8)), jnp.ones((4, 2, 3, 3)), (1, 1), "SAME")

@case("shape_mismatch")
def cond_branches(): jax.lax.cond(True, lambda: jnp.ones(2), lambda: jnp.ones(3))

@case("dtype_mismatch")
def lax_dtypes(): jax.lax.add(jnp.ones(2, jnp.float32), jnp.ones(2, jnp.int32))

@case("dtype_mismatch")
def dot_general(): jax.lax.dynamic_update_slice(jnp.ones(4, jnp.float32), jnp.ones(2, jnp.int32), (0,))

@case("dtype_mismatch")
def grad_of_int(): jax.grad(lambda x: x * 2)(3)

@case("dtype_mismatch")
def cond_dtypes(): jax.lax.cond(True, lambda: jnp.ones(2), lambda: jnp.ones(2, jnp.int32))

@case("unsupported_dtype")
def array_of_strings(): jnp.asarray(np.array(["a", "b"]))

@case("unsupported_dtype")
def object_array(): jnp.asarray(np.array([object()]))

@case("driver_or_init")
def no_gpu(): jax.devices("gpu")

@case("driver_or_init")
def no_tpu(): jax.devices("tpu")

@case("out_of_memory")
def allocation(): jnp.ones((1 << 20, 1 << 22)).block_until_ready()

@case("numeric")
def debug_nans():
    jax.config.update("jax_debug_nans", True); jnp.log(-jnp.ones(2))

@case("numeric")
def debug_infs():
    jax.config.update("jax_debug_infs", True); jnp.ones(2) / 0

@case("not_device_related")
def tracer_bool(): jax.jit(lambda x: 1 if x > 0 else 2)(1.0)

@case("not_device_related")
def tracer_int(): jax.jit(lambda n: jnp.ones(n))(3)

@case("not_device_related")
def leaked():
    leak = []
    jax.jit(lambda x: leak.append(x) or x)(1.0); leak[0] + 1

@case("not_device_related")
def assign():
    x = jnp.ones(3); x[0] = 2

@case("not_device_related")
def non_hashable_static(): jax.jit(lambda a: 1, static_argnums=0)([1])

@case("not_device_related")
def grad_needs_scalar(): jax.grad(lambda x: x * 2)(jnp.ones(3))

@case("placeholder_storage")
def deleted():
    x = jnp.ones(3); x.delete(); x + 1

@case("placeholder_storage")
def donated():
    x = jnp.ones(3); jax.jit(lambda a: a + 1, donate_argnums=0)(x); x.delete() if not x.is_deleted() else None; print(x)

@case("unsupported_op")
def no_cpu_rule():
    from jax.extend.core import Primitive
    p = Primitive("my_attention"); p.def_abstract_eval(lambda x: x); jax.jit(lambda x: p.bind(x))(1.0)
