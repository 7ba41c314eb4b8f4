"""Batches on the device, the next one copied while the current one is used, where that pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import _tree

if TYPE_CHECKING:
    from ._footing import Footing


def batches(foot: "Footing", loader: Iterable[Any]) -> Iterator[Any]:
    """Yields each batch of `loader` on the device of the footing.

    On CUDA and XPU copies from pinned memory run on a stream of their own, one batch ahead. Elsewhere a copy waits
    for nothing, or can't be overlapped (Metal), so batches are moved as they come.
    """
    for batch in _one_ahead(foot, loader) if foot.device.type in ("cuda", "xpu") else loader:
        yield _tree.move(batch, foot.device)


def _one_ahead(foot: "Footing", loader: Iterable[Any]) -> Iterator[Any]:
    device = foot.device
    module = getattr(torch, device.type)
    copies = module.Stream(device)
    waiting: tuple[Any, Any] | None = None
    for batch in loader:
        with module.stream(copies):
            copied = (_tree.move(batch, device, non_blocking=True), copies.record_event())
        if waiting is not None:
            yield _ready(module, *waiting, device)
        waiting = copied
    if waiting is not None:
        yield _ready(module, *waiting, device)


def _ready(module: Any, batch: Any, copied: Any, device: torch.device) -> Any:
    """Makes the current stream wait for the copy, and keeps its memory until that stream is done with it."""
    current = module.current_stream(device)
    current.wait_event(copied)
    for tensor in _tree.tensors(batch):
        if tensor.device.type == device.type:
            tensor.record_stream(current)
    return batch
