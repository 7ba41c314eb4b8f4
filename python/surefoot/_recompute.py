"""Gradient checkpointing for one attempt: activations are computed again in the backward pass instead of kept.

Models that have a switch for it (Hugging Face's) are switched. Of others, blocks that repeat (modules of the same
type, two or more in a `ModuleList` or `Sequential`) are run through `torch.utils.checkpoint`. The model is as it was
when the attempt ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils.checkpoint import checkpoint


def supports(model: torch.nn.Module) -> bool:
    """Whether recomputing would save memory in this model."""
    return _has_switch(model) or bool(_blocks(model))


@contextlib.contextmanager
def recomputing(model: torch.nn.Module, on: bool) -> Iterator[None]:
    """Recomputes activations inside, if `on`."""
    if not on:
        yield
        return
    if _has_switch(model):
        was_on = bool(getattr(model, "is_gradient_checkpointing", False))
        if not was_on:
            model.gradient_checkpointing_enable()
        try:
            yield
        finally:
            if not was_on:
                model.gradient_checkpointing_disable()
        return
    blocks = _blocks(model)
    try:
        for block in blocks:
            block.forward = _recomputed(block.forward)  # shadows the class's method for now
        yield
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)


def _recomputed(forward):
    def run(*args, **kwargs):
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def _has_switch(model: torch.nn.Module) -> bool:
    return bool(getattr(model, "supports_gradient_checkpointing", False)) and hasattr(
        model, "gradient_checkpointing_enable"
    )


def _blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Blocks that repeat and hold parameters, outermost only; none whose `forward` was replaced already."""
    found: list[torch.nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        children = [child for child in module.children() if any(True for _ in child.children())]
        for child in children:
            alike = sum(type(other) is type(child) for other in children)
            if alike >= 2 and "forward" not in child.__dict__:
                found.append(child)
                inside.update(id(inner) for inner in child.modules())
    return found
