"""Triton used wrongly. Kernels are compiled for an NVIDIA card (compute capability 8.0), which needs no card here."""

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from provoke import case


def build(kernel, signature, constants=None, capability=80, **options):
    constants = {(kernel.arg_names.index(name),): value for name, value in (constants or {}).items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@triton.jit
def shapes(x, BLOCK: tl.constexpr):
    a = tl.arange(0, BLOCK)
    b = tl.arange(0, 2 * BLOCK)
    tl.store(x + a, a + b)


@triton.jit
def dot_shapes(x, BLOCK: tl.constexpr):
    a = tl.zeros((BLOCK, BLOCK), tl.float32)
    b = tl.zeros((2 * BLOCK, BLOCK), tl.float32)
    tl.store(x + tl.arange(0, BLOCK), tl.sum(tl.dot(a, b), 0))


@triton.jit
def reshape_sizes(x, BLOCK: tl.constexpr):
    a = tl.reshape(tl.arange(0, BLOCK), (BLOCK, 2))
    tl.store(x + tl.arange(0, BLOCK), tl.sum(a, 1))


@triton.jit
def dot_dtypes(x, BLOCK: tl.constexpr):
    a = tl.zeros((BLOCK, BLOCK), tl.float16)
    b = tl.zeros((BLOCK, BLOCK), tl.float32)
    tl.store(x + tl.arange(0, BLOCK), tl.sum(tl.dot(a, b), 0))


@triton.jit
def shift_of_floats(x, BLOCK: tl.constexpr):
    a = tl.zeros((BLOCK,), tl.float32)
    tl.store(x + tl.arange(0, BLOCK), a << 2)


@triton.jit
def carried_dtype(x, n, BLOCK: tl.constexpr):
    total = 0
    for _ in range(n):
        total = tl.zeros((BLOCK,), tl.float32)
    tl.store(x + tl.arange(0, BLOCK), total)


@triton.jit
def eight_bits(x, BLOCK: tl.constexpr):
    a = tl.load(x + tl.arange(0, BLOCK)).to(tl.float8e4nv)
    tl.store(x + tl.arange(0, BLOCK), a.to(tl.float32))


@triton.jit
def not_a_power_of_two(x, BLOCK: tl.constexpr):
    a = tl.arange(0, BLOCK)
    tl.store(x + a, a)


@triton.jit
def too_many_elements(x, BLOCK: tl.constexpr):
    a = tl.zeros((BLOCK, BLOCK), tl.float32)
    tl.store(x + tl.arange(0, BLOCK), tl.sum(a, 0))


@triton.jit
def no_constant(x, n):
    a = tl.arange(0, n)
    tl.store(x + a, a)


@triton.jit
def unknown_name(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), undefined_scale)  # noqa: F821


@triton.jit
def unknown_function(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.fancy_sum(tl.arange(0, BLOCK)))


@triton.jit
def numpy_inside(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), torch.ones(BLOCK))


@triton.jit
def with_statement(x, BLOCK: tl.constexpr):
    with open("a") as file:
        tl.store(x + tl.arange(0, BLOCK), file)


@triton.jit
def asserted(x, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 100, "the block is too small")
    tl.store(x + tl.arange(0, BLOCK), 1)


@triton.jit
def plain(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


FLOATS = {"x": "*fp32", "BLOCK": "constexpr"}
INTEGERS = {"x": "*i32", "BLOCK": "constexpr"}


@case("shape_mismatch")
def incompatible_blocks(): build(shapes, INTEGERS, {"BLOCK": 16})

@case("shape_mismatch")
def dot_of_wrong_sizes(): build(dot_shapes, FLOATS, {"BLOCK": 16})

@case("shape_mismatch")
def reshape_to_more(): build(reshape_sizes, INTEGERS, {"BLOCK": 16})

@case("dtype_mismatch")
def dot_of_two_dtypes(): build(dot_dtypes, FLOATS, {"BLOCK": 16})

@case("dtype_mismatch")
def shift_a_float(): build(shift_of_floats, FLOATS, {"BLOCK": 16})

@case("kernel_compile")
def variable_changes_its_type(): build(carried_dtype, {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 16})

@case("unsupported_dtype")
def float8_on_an_old_card(): build(eight_bits, FLOATS, {"BLOCK": 16}, capability=70)

@case("kernel_compile")
def block_of_17(): build(not_a_power_of_two, INTEGERS, {"BLOCK": 17})

@case("kernel_compile")
def block_of_millions(): build(too_many_elements, FLOATS, {"BLOCK": 4096})

@case("kernel_compile")
def range_of_a_variable(): build(no_constant, {"x": "*i32", "n": "i32"})

@case("kernel_compile")
def name_that_is_not_defined(): build(unknown_name, FLOATS, {"BLOCK": 16})

@case("kernel_compile")
def function_that_is_not_there(): build(unknown_function, INTEGERS, {"BLOCK": 16})

@case("kernel_compile")
def torch_inside_a_kernel(): build(numpy_inside, FLOATS, {"BLOCK": 16})

@case("kernel_compile")
def statement_that_is_not_supported(): build(with_statement, FLOATS, {"BLOCK": 16})

@case("kernel_compile")
def static_assert(): build(asserted, FLOATS, {"BLOCK": 16})

@case("driver_or_init")
def launch_without_a_gpu(): plain[(1,)](torch.zeros(16), BLOCK=16)

@case("device_mismatch")
def tensor_of_the_cpu():
    plain[(1,)](torch.zeros(16), BLOCK=16) if torch.cuda.is_available() else None

@case("not_device_related")
def called_without_a_grid(): plain(torch.zeros(16), BLOCK=16)
