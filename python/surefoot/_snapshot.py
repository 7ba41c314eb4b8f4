"""What a failed attempt may have changed, and putting it back bit for bit: gradients, buffers, an optimizer.

Random states are in `_random`. Everything here is called by `_step` only, once or more in every step, so it avoids work for
each tensor in Python: copies are kept between steps and made by one call for all tensors of a device and dtype.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase


def modules_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """All modules of a model, outer ones first. `Module.modules` takes several times as long."""
    found = [model]
    seen = {id(model)}
    for module in found:
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def trained_parameters(model: torch.nn.Module, modules: list[torch.nn.Module]) -> list[torch.nn.Parameter]:
    """The parameters that gradients are computed for, each once; `modules` are those of the model."""
    kind = type(model)
    if kind.parameters is not torch.nn.Module.parameters or kind.named_parameters is not torch.nn.Module.named_parameters:
        return [parameter for parameter in model.parameters() if parameter.requires_grad]
    found: dict[int, torch.nn.Parameter] = {}
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None and parameter.requires_grad:
                found[id(parameter)] = parameter
    return list(found.values())


class Copies:
    """Copies of tensors, kept and used again. `where` is the device of the copies, or None for the tensors' own."""

    def __init__(self, where: torch.device | None = None) -> None:
        self._where = where
        self._live: list[torch.Tensor] = []
        # Copies and the tensors they are of; each pair of lists has one device and one dtype, as the fast copy of many
        # tensors in one call needs it (Adam's step counts are on the CPU while its moments are on the GPU).
        self._pairs: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []

    def take(self, live: list[torch.Tensor]) -> None:
        """Copies the tensors."""
        same = live is self._live or (len(live) == len(self._live) and all(map(operator.is_, live, self._live)))
        if not same or not self._fits():
            self._pair(live)
        with torch.no_grad():
            for copies, tensors in self._pairs:
                torch._foreach_copy_(copies, tensors)

    def put_back(self) -> None:
        """Gives the tensors what they had when they were copied."""
        with torch.no_grad():
            for copies, tensors in self._pairs:
                torch._foreach_copy_(tensors, copies)

    def in_order(self) -> list[torch.Tensor]:
        """The copies, in the order of the tensors."""
        by_tensor = {id(tensor): copy for copies, tensors in self._pairs for copy, tensor in zip(copies, tensors)}
        return [by_tensor[id(tensor)] for tensor in self._live]

    def _fits(self) -> bool:
        """Whether the same tensors are still where and what they were: `Module.to` moves a parameter in place."""
        return all(
            copies[0].device == (self._where or tensors[0].device) and copies[0].shape == tensors[0].shape
            for copies, tensors in self._pairs
        )

    def _pair(self, live: list[torch.Tensor]) -> None:
        spare: dict[Any, list[torch.Tensor]] = {}
        for copies, _ in self._pairs:
            for copy in copies:
                spare.setdefault((copy.shape, copy.dtype, copy.device), []).append(copy)
        self._pairs = []
        groups: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for tensor in live:
            device = self._where or tensor.device
            usable = spare.get((tensor.shape, tensor.dtype, device))
            copy = usable.pop() if usable else torch.empty_like(tensor, device=device, requires_grad=False)
            copies, tensors = groups.setdefault((tensor.device, tensor.dtype), ([], []))
            copies.append(copy)
            tensors.append(tensor)
        self._live, self._pairs = live, list(groups.values())


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
        self._before: dict[str, tuple[torch.Tensor, int]] = {}
        self._saved: list[str] = []
        self._copies = Copies()
        self.unsaved: set[str] = set()
        for path, module in model.named_modules():
            if isinstance(module, _NormBase):
                prefix = f"{path}." if path else ""
                self._changing.update(prefix + name for name, _ in module.named_buffers(recurse=False))

    def save(self, model: torch.nn.Module, modules: list[torch.nn.Module]) -> None:
        has_any = any(module._buffers for module in modules)
        self._before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()} if has_any else {}
        self._saved = [name for name in self._before if name in self._changing]
        self._copies.take([self._before[name][0] for name in self._saved])

    def learn(self, model: torch.nn.Module) -> None:
        """Notes which other buffers an attempt changed."""
        for name, buffer in model.named_buffers() if self._before else ():
            if name not in self._changing and self._is_changed(name, buffer):
                self._changing.add(name)

    def restore(self, model: torch.nn.Module) -> None:
        copies = dict(zip(self._saved, self._copies.in_order()))
        with torch.no_grad():
            for name, buffer in model.named_buffers() if self._before else ():
                # By name, since the attempt may have put another tensor in its place, as a move to a device does.
                if name in copies:
                    buffer.copy_(copies[name])
                elif self._is_changed(name, buffer):
                    self.unsaved.add(name)

    def _is_changed(self, name: str, buffer: torch.Tensor) -> bool:
        before, version = self._before.get(name, (buffer, buffer._version))
        if before is buffer:
            return version != buffer._version
        return before.device == buffer.device  # else it was moved


class OptimizerState:
    """Parameters and optimizer state, copied so that an update that stops half-way can be undone.

    `where` is the device of the copies, or None for the tensors' own. As long as parameters and state are the same objects
    as at the step before, which is the rule, only their numbers are copied.
    """

    def __init__(self, where: torch.device | None = None) -> None:
        self._copies = Copies(where)
        self._seen: list[Any] = []
        self._live: list[torch.Tensor] = []
        self._entries: list[tuple[Any, dict[str, Any]]] = []
        self._groups: list[dict[str, Any]] = []

    @staticmethod
    def bytes(optimizer: torch.optim.Optimizer) -> int:
        return sum(tensor.nbytes for tensor in changed_by(optimizer))

    def save(self, optimizer: torch.optim.Optimizer) -> None:
        seen = _objects(optimizer)
        if len(seen) != len(self._seen) or not all(map(operator.is_, seen, self._seen)):
            self._live = list(changed_by(optimizer))
            self._entries = [(key, dict(entry)) for key, entry in optimizer.state.items() if isinstance(entry, dict)]
            self._seen = seen
        self._copies.take(self._live)
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        self._copies.put_back()
        before = dict(self._entries)
        for key in [key for key in optimizer.state if key not in before]:
            del optimizer.state[key]
        for key, entry in self._entries:
            optimizer.state[key] = dict(entry)
        for group, values in zip(optimizer.param_groups, self._groups):
            group.update(values)


def _objects(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What decides which tensors an update changes: parameters, whether each has a gradient, and all values of the state."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    without = [parameter.grad is None for parameter in parameters]
    entries = [entry for entry in optimizer.state.values() if isinstance(entry, dict)]
    return [*parameters, *without, *itertools.chain.from_iterable(map(dict.values, entries))]


def changed_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What an update changes: parameters that have a gradient, and their state."""
    state = optimizer.state
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            yield parameter
            for value in state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    yield value
