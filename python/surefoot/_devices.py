"""PyTorch's devices, as the engine in Rust asks for them. Called by `_native` only.

A device has the name that Surefoot uses everywhere (`metal`, `cuda:1`, `xpu`, `cpu`); PyTorch calls `metal` `mps`.
Nothing is opened before it is asked for: a process that only uses the CPU never starts CUDA.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import torch

# In the order in which `auto` prefers them.
PREFERRED = ("metal", "cuda", "xpu")


def torch_device(name: str) -> torch.device:
    """PyTorch's device for a name."""
    kind, _, index = name.partition(":")
    if kind == "metal":
        return torch.device("mps")
    if kind == "cpu":
        # A second CPU device exists for tests of the chain; to PyTorch they are one.
        return torch.device("cpu")
    return torch.device(kind, int(index or 0))


def name_of(device: torch.device) -> str:
    """Surefoot's name for a device of PyTorch."""
    kind = {"mps": "metal"}.get(device.type, device.type)
    return f"{kind}:{device.index}" if device.index else kind


def built_in() -> list[str]:
    """The kinds of device that this PyTorch could use and that say they are there."""
    found = []
    for kind in PREFERRED:
        module = torch.backends.mps if kind == "metal" else getattr(torch, kind, None)
        if module is not None and module.is_available():
            found.append(kind)
    return found


def open_device(name: str) -> dict[str, Any]:
    """Opens a device by using it once; says what it is."""
    device = torch_device(name)
    torch.ones(8, device=device).sum().item()
    return {
        "hardware": _hardware(device),
        "total": total(name),
        # PyTorch allocates while the call is made, so that CUDA's lack of memory is raised at once. Metal reports
        # failed command buffers later.
        "asynchronous": device.type == "mps",
        "shares_host": device.type in ("cpu", "mps"),
    }


def _hardware(device: torch.device) -> str:
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).get_device_name(device)
    return "Apple GPU" if device.type == "mps" else f"{torch.get_num_threads()} threads"


def in_use(name: str) -> int | None:
    """Bytes of the device that this process holds; None for the CPU, which Rust measures."""
    device = torch_device(name)
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return None


def peak(name: str) -> int | None:
    """The most bytes that were ever held, where PyTorch counts them."""
    device = torch_device(name)
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).max_memory_reserved(device)
    return None


def total(name: str) -> int | None:
    """Bytes that the device has in all; None for the CPU, which Rust measures."""
    device = torch_device(name)
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return None


def available(name: str) -> int | None:
    """Bytes that could still be allocated: what is free, and what PyTorch's cache holds unused."""
    device = torch_device(name)
    if device.type in ("cuda", "xpu"):
        module = getattr(torch, device.type)
        if not hasattr(module, "mem_get_info"):
            return None
        free, whole = module.mem_get_info(device)
        allocated = module.memory_allocated(device)
        room = free + module.memory_reserved(device) - allocated
        fraction = getattr(module, "get_per_process_memory_fraction", None)
        if fraction is not None:
            # A budget, ours or the user's, that PyTorch's allocator keeps.
            room = min(room, int(fraction(device) * whole) - allocated)
        return max(0, room)
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return None


def reclaim(name: str) -> None:
    """Gives memory back that nothing uses. The failed attempt's frames have been cleared before."""
    gc.collect()
    device = torch_device(name)
    if device.type in ("cuda", "xpu", "mps"):
        getattr(torch, device.type).empty_cache()
    elif sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def limit(name: str, bytes_: int) -> bool:
    """Keeps PyTorch's allocator within a budget, where it can be told one."""
    device = torch_device(name)
    module = getattr(torch, device.type, None)
    set_fraction = getattr(module, "set_per_process_memory_fraction", None)
    whole = total(name)
    if device.type == "cpu" or set_fraction is None or not whole:
        return False
    fraction = min(1.0, bytes_ / whole)
    set_fraction(fraction) if device.type == "mps" else set_fraction(fraction, device)
    return True


def computes_in(name: str, dtype: str) -> bool:
    """Whether a small product in `dtype` comes out right."""
    device = torch_device(name)
    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
    try:
        a = torch.arange(64, dtype=torch.float32).reshape(8, 8) / 64
        product = (a.to(device, kinds[dtype]) @ a.to(device, kinds[dtype])).float().cpu()
    except (RuntimeError, TypeError):
        return False
    return bool(torch.allclose(product, a @ a, rtol=0.05, atol=0.05))


def synchronize(name: str) -> None:
    """Waits for the device, so that what failed behind the caller's back is raised here."""
    device = torch_device(name)
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
