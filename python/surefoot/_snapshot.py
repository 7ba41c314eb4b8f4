"""What a failed attempt may have changed, and putting it back bit for bit: gradients, buffers, an optimizer.

Random states are in `_random`. Everything here is called by `_step` only.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase


class Gradients:
    """The gradients from before a step: a failed attempt's are dropped, a good one's are added to them."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [parameter.grad for parameter in parameters]

    def clear(self) -> None:
        """Starts an attempt without gradients, and drops those of one that failed."""
        for parameter in self._parameters:
            parameter.grad = None

    def put_back(self) -> None:
        for parameter, before in zip(self._parameters, self._before):
            parameter.grad = before

    def add(self) -> None:
        """Adds the attempt's gradients to those from before, in place."""
        for parameter, before in zip(self._parameters, self._before):
            if before is None:
                continue
            if parameter.grad is not None:
                before.add_(parameter.grad.to(before.device))
            parameter.grad = before


class Buffers:
    """Buffers that a forward pass in training mode changes, as batch statistics are.

    Which ones those are is known for PyTorch's norms, and learned for others from the version that PyTorch keeps of
    each tensor: a buffer that changed once is saved from then on.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._changing: set[str] = set()
        self._versions: dict[str, int] = {}
        self._saved: dict[str, torch.Tensor] = {}
        self.unsaved: set[str] = set()
        for path, module in model.named_modules():
            if isinstance(module, _NormBase):
                prefix = f"{path}." if path else ""
                self._changing.update(prefix + name for name, _ in module.named_buffers(recurse=False))
        self._has_any = True

    def save(self, model: torch.nn.Module) -> None:
        buffers = dict(model.named_buffers())
        self._has_any = bool(buffers)
        self._versions = {name: buffer._version for name, buffer in buffers.items()}
        self._saved = {name: buffers[name].clone() for name in self._changing if name in buffers}

    def learn(self, model: torch.nn.Module) -> None:
        """Notes which other buffers an attempt changed."""
        for name, buffer in model.named_buffers() if self._has_any else ():
            if name not in self._changing and self._versions.get(name) not in (None, buffer._version):
                self._changing.add(name)

    def restore(self, model: torch.nn.Module) -> None:
        with torch.no_grad():
            for name, buffer in model.named_buffers() if self._has_any else ():
                if name in self._saved:
                    buffer.copy_(self._saved[name])
                elif self._versions.get(name) not in (None, buffer._version):
                    self.unsaved.add(name)


class OptimizerState:
    """Parameters and optimizer state, copied so that an update that stops half-way can be undone.

    The copies are kept and used again at the next step. `where` is the device of the copies, or None for the
    tensors' own.
    """

    def __init__(self, where: torch.device | None = None) -> None:
        self._where = where
        self._copies: list[torch.Tensor] = []
        self._live: list[torch.Tensor] = []
        self._state: dict[Any, dict[str, Any]] = {}
        self._groups: list[dict[str, Any]] = []

    @staticmethod
    def bytes(optimizer: torch.optim.Optimizer) -> int:
        return sum(tensor.nbytes for tensor in _tensors(optimizer))

    def save(self, optimizer: torch.optim.Optimizer) -> None:
        live = list(_tensors(optimizer))
        if not self._fits(live):
            self._copies = [torch.empty_like(tensor, device=self._where, requires_grad=False) for tensor in live]
        with torch.no_grad():
            _copy(self._copies, live)
        self._live = live
        self._state = {key: dict(entry) for key, entry in optimizer.state.items() if isinstance(entry, dict)}
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            _copy(self._live, self._copies)
        for key in list(optimizer.state):
            if key not in self._state:
                del optimizer.state[key]
        for key, entry in self._state.items():
            optimizer.state[key] = entry
        for group, before in zip(optimizer.param_groups, self._groups):
            group.update(before)

    def _fits(self, live: list[torch.Tensor]) -> bool:
        if len(live) == len(self._live) and all(map(operator.is_, live, self._live)):
            return True  # the same tensors as at the last step
        return len(live) == len(self._copies) and all(
            copy.shape == tensor.shape
            and copy.dtype == tensor.dtype
            and copy.device == (self._where or tensor.device)
            for copy, tensor in zip(self._copies, live)
        )


def _copy(to: list[torch.Tensor], source: list[torch.Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)


def _tensors(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """What an update changes: parameters that have a gradient, and their state."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            yield parameter
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    yield value
