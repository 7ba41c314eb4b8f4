"""Whether an optimizer's update can stop half-way at all, so that a copy of its state is worth its time.

What stops an update is an allocation that fails. On the CPU of a system that promises more memory than it has (Linux by
default, macOS) no allocation of a parameter's size fails: where memory runs out the system ends the process, against which
no copy helps. There an update of PyTorch's own optimizers runs to its end once it has run before. Called by `_step` only.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import torch
from torch.optim import optimizer as _hooks

# Each updates one parameter from its own gradient and state. Subclasses may do anything, so types are compared exactly.
_PLAIN = tuple(
    getattr(torch.optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
    if hasattr(torch.optim, name)
)


def can_stop_halfway(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> bool:
    """Whether something could stop the next update between two parameters, given that one has succeeded before."""
    return (
        type(optimizer) not in _PLAIN
        or _is_hooked(optimizer)
        or _allocations_fail()
        or not all(map(_is_plain, parameters))
    )


def _is_plain(parameter: torch.nn.Parameter) -> bool:
    grad = parameter.grad
    if grad is None:
        return True
    is_dense = grad.layout is torch.strided and grad.dtype == parameter.dtype
    return is_dense and parameter.device.type == "cpu" and type(parameter) is torch.nn.Parameter


def _is_hooked(optimizer: torch.optim.Optimizer) -> bool:
    """Whether code of others runs inside `step`; the wrapper of learning rate schedulers only counts calls."""
    step = optimizer.__dict__.get("step")
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return (
        (step is not None and not getattr(step, "_wrapped_by_lr_sched", False))
        or any(getattr(optimizer, name, None) for name in names)
        or any(getattr(_hooks, name, None) for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"))
    )


def _allocations_fail() -> bool:
    """Whether this process can be refused memory instead of being ended."""
    if _system_refuses():
        return True
    import resource

    return any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA))


@functools.cache
def _system_refuses() -> bool:
    if sys.platform == "darwin":
        return False
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        return True
