"""What every module of a model gives out in one forward pass, through forward hooks.

A site is one call of one module, named as `named_modules` names it; a module that is called again is `name#2`. Sites
are in the order in which their modules finish, so a module comes behind the modules inside it. The whole model is the
site `output`. Hooks are removed when the pass ends, whatever happens; nothing of PyTorch is patched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _tree
from ._random import RandomState

OUTPUT = "output"


@dataclasses.dataclass
class Site:
    """What one call of a module gave."""

    name: str
    module: str
    """The module's class."""
    is_leaf: bool
    output: torch.Tensor
    """The numbers, copied when the module returned."""
    later: torch.Tensor | None = None
    """The module's own output, if it is kept: it shows whether the numbers changed afterwards."""
    version: int = 0
    shapes: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    """The shapes of the inputs."""
    strides: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    """The strides of the inputs that are not contiguous."""
    inputs: list[torch.Tensor] = dataclasses.field(default_factory=list)


# Changes the numbers that go into a module and come out of it, as other arithmetic would.
Change = Callable[[torch.Tensor], torch.Tensor]


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor of numbers with a fraction in a module's output."""
    return next((t for t in _tree.tensors(value) if t.is_floating_point()), None)


class Forward:
    """How a batch is given to a model."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any] | None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"this needs a torch.nn.Module, not a {type(model).__name__}")
        self._call = call
        self._most = _positional(model) if call is None else None

    def __call__(self, model: torch.nn.Module, batch: Any) -> Any:
        if self._call is not None:
            return self._call(model, *batch) if isinstance(batch, (tuple, list)) else self._call(model, batch)
        if isinstance(batch, dict):
            return model(**batch)
        if isinstance(batch, (tuple, list)):
            # A loader gives inputs and labels; a forward that takes inputs alone is given those.
            return model(*(batch if self._most is None else batch[: self._most]))
        return model(batch)


def _positional(model: torch.nn.Module) -> int | None:
    """How many positional arguments the forward takes; None for any number."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


@contextlib.contextmanager
def still(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the mode of each module comes back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def run(
    model: torch.nn.Module,
    forward: Forward,
    batch: Any,
    *,
    change: Change | None = None,
    contiguous: Callable[[str], bool] | None = None,
    keep: bool = False,
    inputs_of: str | None = None,
) -> list[Site]:
    """One forward pass; gives its sites. The random state is the same before and after.

    `change` disturbs what goes into the innermost modules and what every module gives out; modules for which `contiguous` is true are given contiguous inputs;
    `keep` also keeps the outputs themselves, so that later changes of their numbers can be seen; the inputs of the
    module `inputs_of` are copied.
    """
    sites: list[Site] = []
    calls: dict[str, int] = {}
    handles = []

    def hook(name: str, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        tensor = first_tensor(output)
        if tensor is None:
            return None
        changed = None if change is None else change(tensor)
        if changed is not None:
            output = _tree.change(output, lambda t: changed if t is tensor else t)
            tensor = changed
        calls[name] = calls.get(name, 0) + 1
        inputs = list(_tree.tensors((args, kwargs)))
        sites.append(
            Site(
                name if calls[name] == 1 else f"{name}#{calls[name]}",
                type(module).__name__,
                not any(True for _ in module.children()),
                tensor.detach().clone(),
                tensor.detach() if keep else None,
                tensor._version,
                [tuple(t.shape) for t in inputs],
                [t.stride() for t in inputs if not t.is_contiguous()],
                [t.detach().clone() for t in inputs] if name == inputs_of else [],
            )
        )
        return output if changed is not None else None

    def prepare(module: torch.nn.Module, args: Any, kwargs: Any, straight: bool) -> Any:
        if change is not None and not any(True for _ in module.children()):
            args, kwargs = _tree.change((args, kwargs), lambda t: change(t) if t.is_floating_point() else t)
        return _tree.change((args, kwargs), lambda t: t.contiguous()) if straight else (args, kwargs)

    for name, module in model.named_modules():
        name = name or OUTPUT
        straight = contiguous is not None and contiguous(name)
        if straight or change is not None:
            before = lambda m, a, k, straight=straight: prepare(m, a, k, straight)  # noqa: E731
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(
            module.register_forward_hook(lambda m, a, k, o, name=name: hook(name, m, a, k, o), with_kwargs=True)
        )
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    random = RandomState(device)
    try:
        with still(model):
            forward(model, batch)
    finally:
        random.restore()
        for handle in handles:
            handle.remove()
    if not sites:
        raise ValueError("no module of the model gave a tensor of floating-point numbers, so there is nothing to compare")
    return sites


def arithmetic(share: float, seed: int) -> Change:
    """Moves every number up or down by `share` of its size, or of its row's where that is larger."""
    generator = torch.Generator().manual_seed(seed)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor if tensor.dtype == torch.float64 else tensor.float()
        scale = wide.abs().mean(-1, keepdim=True) if wide.dim() else wide.abs()
        signs = torch.randint(0, 2, wide.shape, generator=generator, dtype=torch.int8).to(wide.device) * 2 - 1
        return (wide + share * torch.maximum(wide.abs(), scale) * signs).to(tensor.dtype)

    return change


def longest_sum(model: torch.nn.Module) -> int:
    """How many terms the longest sum of a module has, by the shapes of its weights."""
    lengths = [parameter[0].numel() for parameter in model.parameters() if parameter.dim() > 1 and len(parameter)]
    return max(lengths, default=16)
