"""Exceptions are told apart by type, then by text; what is let go of is freed."""

import gc
import pickle
import weakref

import pytest
import torch

import surefoot
from surefoot._errors import let_go

MESSAGES = {
    "out_of_memory": [
        RuntimeError("MPS backend out of memory (MPS allocated: 8.87 GB, other allocations: 192.00 KB, max allowed: 9.07 GB)."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
    ],
    "unsupported_op": [
        NotImplementedError("The operator 'aten::_cummax_helper' is not currently implemented for the MPS device."),
    ],
    "unsupported_dtype": [
        TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."),
    ],
    "device_mismatch": [
        RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
    ],
    "dtype_mismatch": [RuntimeError("expected scalar type Float but found Half")],
    "placeholder_storage": [RuntimeError("Placeholder storage has not been allocated on MPS device!")],
    "shape_mismatch": [RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)")],
    "not_device_related": [ValueError("CUDA out of memory"), KeyError("x"), ZeroDivisionError("division by zero"), KeyboardInterrupt()],
}


@pytest.mark.parametrize("kind, error", [(kind, error) for kind, errors in MESSAGES.items() for error in errors])
def test_kinds(kind, error):
    assert surefoot.kind_of(error) == kind


def test_tensors_held_by_a_traceback_are_freed():
    freed = []

    def work():
        big = torch.ones(1000)
        weakref.finalize(big, freed.append, True)
        try:
            raise KeyError("inner")
        except KeyError:
            raise RuntimeError("outer")

    try:
        work()
    except RuntimeError as error:
        kept = error
    gc.collect()
    assert not freed, "the traceback holds it"
    let_go(kept)
    gc.collect()
    assert freed
    assert kept.__traceback__.tb_next.tb_lineno > 0, "lines are still readable"


def test_a_fault_survives_pickling():
    fault = surefoot.Fault("no memory", "out_of_memory", "step", "cpu", ["buy more"], ["earlier"])
    copy = pickle.loads(pickle.dumps(fault))
    assert (str(copy), copy.kind, copy.operation, copy.device, copy.advice) == ("no memory", "out_of_memory", "step", "cpu", ["buy more"])
