"""Nested values: tensors in tuples, lists, dicts, dataclasses and what is made of them.

Splitting narrows every tensor whose size along the dimension is the number of samples and passes the rest
through. Joining is its inverse: it puts the results of the parts together so that they equal the result of the
whole batch, and refuses where it can't know how.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in `value`, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for _, child in _children(value):
            yield from tensors(child)


def change(value: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
    """The same structure, with each tensor replaced by `tensor(it)`."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    children = _children(value)
    if not children:
        return value
    changed = {key: change(child, tensor) for key, child in children}
    if all(changed[key] is child for key, child in children):
        return value
    return _with_children(value, changed)


def move(value: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """The same structure on `device`; what is there already is not copied."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if _is_on(tensor, device) else tensor.to(device, non_blocking=non_blocking)

    return change(value, moved)


def samples(value: Any, dim: int = 0) -> int | None:
    """The number of samples: the first tensor's size along `dim`; None if no tensor has that dimension."""
    for tensor in tensors(value):
        if _has_dim(tensor, dim):
            return tensor.size(dim)
    return None


def narrow(value: Any, dim: int, start: int, stop: int, whole: int) -> Any:
    """Samples `start..stop` of a value with `whole` samples."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if _has_dim(tensor, dim) and tensor.size(dim) == whole:
            return tensor.narrow(dim, start, stop - start)
        return tensor

    return change(value, cut)


class CannotJoin(TypeError):
    """The results of the parts of a batch don't say how they belong together."""


def join(parts: list[Any], sizes: list[int], dim: int = 0, where: str = "the result") -> Any:
    """The result of the whole batch from those of its parts, of `sizes` samples each."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return _join_tensors(parts, sizes, dim, where)
    if _is_list_of_samples(parts, sizes):
        return type(first)(item for part in parts for item in part)
    children = _children(first)
    if children:
        if any(type(part) is not type(first) for part in parts):
            raise CannotJoin(f"{where} has different types in different parts: give guard a combine=")
        by_part = [dict(_children(part)) for part in parts]
        if any(part.keys() != by_part[0].keys() for part in by_part):
            raise CannotJoin(f"{where} has different entries in different parts: give guard a combine=")
        joined = {key: join([part[key] for part in by_part], sizes, dim, f"{where}[{key!r}]") for key, _ in children}
        return _with_children(first, joined)
    if all(part is first or part == first for part in parts):
        return first
    raise CannotJoin(
        f"{where} is a {type(first).__name__} that differs between the parts of the batch: "
        "give guard a combine= that puts the parts' results together"
    )


def _join_tensors(parts: list[torch.Tensor], sizes: list[int], dim: int, where: str) -> torch.Tensor:
    if all(_has_dim(part, dim) and part.size(dim) == size for part, size in zip(parts, sizes)):
        return torch.cat(parts, dim)
    if all(part.shape == parts[0].shape and torch.equal(part, parts[0]) for part in parts):
        return parts[0]
    raise CannotJoin(
        f"{where} has shape {tuple(parts[0].shape)} for {sizes[0]} samples, so it can't be joined along dimension {dim}: "
        "give guard a combine= that puts the parts' results together, for example a weighted mean"
    )


def _is_list_of_samples(parts: list[Any], sizes: list[int]) -> bool:
    """Whether each part is a list with one entry a sample, as decoded texts are."""
    if not all(type(part) is list and len(part) == size for part, size in zip(parts, sizes)):
        return False
    return not any(True for part in parts for _ in tensors(part))


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, (str, bytes)) or isinstance(value, type):
        return []
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in fields if hasattr(value, name)]
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    return []


def _with_children(value: Any, children: dict[Any, Any]) -> Any:
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **children)
    if isinstance(value, Mapping):
        changed = copy.copy(value)
        for key, child in children.items():
            changed[key] = child  # type: ignore[index]
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*children.values())
    return type(value)(children.values())


def _has_dim(tensor: torch.Tensor, dim: int) -> bool:
    return -tensor.dim() <= dim < tensor.dim()


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    at = tensor.device
    return at.type == device.type and (device.index is None or at.index is None or at.index == device.index)
