"""Functions that survive faults: the decorator `guard`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import _devices, _tree
from ._random import RandomState

if TYPE_CHECKING:
    from ._footing import Footing

_COMPUTE = {"bf16": torch.bfloat16, "fp16": torch.float16}

_default: "Footing | None" = None


def default_footing() -> "Footing":
    """The footing of functions that were guarded without one: made at the first call."""
    global _default
    if _default is None:
        from ._footing import Footing

        _default = Footing()
    return _default


class Guarded:
    """A function whose faults are recovered from. Called like the function itself."""

    def __init__(
        self,
        footing: Callable[[], "Footing"],
        function: Callable[..., Any],
        split: int | dict[str, int | None] | None,
        combine: Callable[[list[Any], list[int]], Any] | None,
        name: str | None,
    ) -> None:
        self._footing = footing
        self._function = function
        self._split = split
        self._combine = combine
        self._name = name or getattr(function, "__name__", type(function).__name__)
        functools.update_wrapper(self, function, updated=())

    @classmethod
    def decorate(cls, footing, function, split, combine, name) -> Any:
        if combine is not None and split is None:
            raise ValueError("combine= joins the parts of a split batch: say along which dimension with split=0")
        if function is not None:
            return cls(footing, function, split, combine, name)
        return lambda function: cls(footing, function, split, combine, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        foot = self._footing()
        dims = self._dims(args, kwargs)
        samples = self._samples(dims, args, kwargs)
        random = RandomState(foot.device)
        combine = self._combine

        def attempt_once(attempt: Any) -> Any:
            if attempt.attempt > 1:
                random.restore()
            device = _devices.torch_device(attempt.device)
            for model in foot._placed:
                if any(not _tree._is_on(parameter, device) for parameter in model.parameters()):
                    model.to(device)
            dtype = _COMPUTE.get(attempt.compute)
            results, sizes = [], []
            with torch.autocast(device.type, dtype) if dtype is not None else contextlib.nullcontext():
                for start, stop in attempt.ranges:
                    part = (args, kwargs) if attempt.parts == 1 else self._part(dims, args, kwargs, start, stop, samples)
                    part_args, part_kwargs = _tree.move(part, device)
                    attempt.point("operation")
                    results.append(self._function(*part_args, **part_kwargs))
                    sizes.append(stop - start)
            if combine is not None and len(results) > 1:
                return combine(results, sizes)
            return _tree.join(results, sizes, dims if isinstance(dims, int) else _first_dim(dims))

        rungs = ["precision"] if self._split is None else ["split", "precision"]
        return foot._run(self._name, attempt_once, samples, rungs)

    def _dims(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The dimension for all arguments, or one for each argument by its position or name."""
        if not isinstance(self._split, dict):
            return 0 if self._split is None else self._split
        try:
            bound = inspect.signature(self._function).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return 0  # the call itself will say what is wrong
        names = dict(zip(range(len(args)), bound.arguments))
        unknown = set(self._split) - set(inspect.signature(self._function).parameters)
        if unknown:
            raise ValueError(f"split names no argument of {self._name}: {', '.join(sorted(unknown))}")
        by_place: dict[Any, int | None] = {at: self._split.get(name) for at, name in names.items()}
        by_place.update({name: self._split.get(name) for name in kwargs})
        return by_place

    def _samples(self, dims: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        if self._split is None:
            return None
        if isinstance(dims, int):
            samples = _tree.samples((args, kwargs), dims)
        else:
            found = (_tree.samples(v, dims[k]) for k, v in [*enumerate(args), *kwargs.items()] if dims.get(k) is not None)
            samples = next((n for n in found if n is not None), None)
        if samples is None:
            raise ValueError(
                f"{self._name} was called without a tensor that has dimension {self._split}, so there is no batch to "
                "split: pass one, or guard it without split="
            )
        return max(samples, 1)

    def _part(self, dims, args, kwargs, start, stop, samples) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def cut(key: Any, value: Any) -> Any:
            dim = dims if isinstance(dims, int) else dims.get(key)
            return value if dim is None else _tree.narrow(value, dim, start, stop, samples)

        return tuple(cut(at, v) for at, v in enumerate(args)), {name: cut(name, v) for name, v in kwargs.items()}


def _first_dim(dims: dict[Any, int | None]) -> int:
    return next((dim for dim in dims.values() if dim is not None), 0)


def guard(
    function: Callable[..., Any] | None = None,
    *,
    split: int | dict[str, int | None] | None = None,
    combine: Callable[[list[Any], list[int]], Any] | None = None,
    name: str | None = None,
    footing: "Footing | None" = None,
) -> Any:
    """Makes a function survive faults of the device, as a decorator or by a call.

    If the device runs out of memory, unused memory is returned; then, with `split=0`, tensors in the arguments that
    have the batch's size along dimension 0 are run in parts and the results joined; then the next device is tried.
    The function may be called several times and must not change anything outside. Its own mistakes, such as
    shapes that don't fit, are raised unchanged and at once.

    Arguments:
        split: the batch's dimension, or one for each argument by name (`{"x": 0, "mask": None}`: None is not split).
        combine: `combine(results, sizes)` joins the results of the parts, where joining along the dimension is not it.
        name: what the journal calls it; the function's name by default.
        footing: a `surefoot.Footing`; by default one for the process, on the best device.

    >>> import surefoot, torch
    >>> foot = surefoot.Footing(device="cpu", drill="out_of_memory:count=3")
    >>> @surefoot.guard(split=0, footing=foot)
    ... def double(x):
    ...     return {"twice": x * 2}
    >>> double(torch.arange(4))
    {'twice': tensor([0, 2, 4, 6])}
    >>> foot.last.parts
    4
    """
    chosen = default_footing if footing is None else (lambda: footing)
    return Guarded.decorate(chosen, function, split, combine, name)
