"""Exceptions of the package, and how PyTorch's exceptions are told apart.

Types decide first, texts (the rules of `surefoot explain`, in Rust) last. What is the caller's own mistake is
never retried and reaches the caller as it was raised.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from typing import Any

from . import _native


class Fault(RuntimeError):
    """A fault that recovery did not survive, or that the policy forbade it to answer.

    `kind` is one of the fault kinds of Surefoot (`out_of_memory`, `device_lost`, …), `operation` the guarded work,
    `device` where it ran, `reason` what was said of it, `advice` what to change, `earlier` the faults before it, as
    texts. The exception that PyTorch raised last is its `__cause__`.
    """

    def __init__(
        self,
        message: str,
        kind: str = "not_device_related",
        operation: str = "",
        device: str | None = None,
        advice: list[str] | None = None,
        earlier: list[str] | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.operation = operation
        self.device = device
        self.advice = advice or []
        self.earlier = earlier or []
        self.reason = reason or message

    def __reduce__(self) -> Any:
        return (type(self), (str(self), self.kind, self.operation, self.device, self.advice, self.earlier, self.reason))


class PeerFailed(Fault):
    """Another rank of a distributed job failed or died, so this one can't go on."""


class SurefootWarning(UserWarning):
    """Something that changes results or costs time, and that nobody asked for."""


def warn(message: str) -> None:
    """Warns at the line of the user's code that called into the package."""
    depth, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("surefoot"):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, SurefootWarning, stacklevel=depth)


# Exceptions that say nothing of a device whatever their text is.
_ORDINARY = (ValueError, LookupError, AttributeError, AssertionError, ArithmeticError, NameError, OSError, StopIteration)


def kind_of(error: BaseException) -> str:
    """The kind of fault that `error` is.

    >>> import surefoot
    >>> surefoot.kind_of(RuntimeError("MPS backend out of memory (MPS allocated: 9.0 GB)"))
    'out_of_memory'
    >>> surefoot.kind_of(ValueError("CUDA out of memory is only words here"))
    'not_device_related'
    """
    if isinstance(error, Fault):
        return error.kind
    if isinstance(error, MemoryError):
        return "out_of_memory"
    import torch

    out_of_memory = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    if isinstance(error, out_of_memory):
        return "out_of_memory"
    if isinstance(error, _ORDINARY) or not isinstance(error, Exception):
        return "not_device_related"
    kind = _native.kind_of_text(f"{type(error).__name__}: {error}")
    if kind == "not_device_related" and isinstance(error, getattr(torch, "AcceleratorError", ())):
        # The driver failed in a way that no rule knows; its context is not to be trusted.
        return "command_buffer"
    return kind


def let_go(error: BaseException) -> None:
    """Frees what the frames of a traceback hold: tensors, above all. Line numbers stay readable."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        error_ = pending.pop()
        if error_ is None or id(error_) in seen:
            continue
        seen.add(id(error_))
        traceback.clear_frames(error_.__traceback__)
        pending += [error_.__cause__, error_.__context__]
