"""Checkpoints of `Footing.save` and `Footing.resume`: one file, replaced whole."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._footing import Footing


def save(foot: "Footing", model: Any, optimizer: Any, *others: Any) -> str:
    path = _path(foot)
    state = {
        "surefoot": 1,
        "steps": foot._trainer.steps,
        "model": _bare(model).state_dict(),
        "optimizer": optimizer.state_dict(),
        "others": [other.state_dict() for other in others],
        "random": torch.get_rng_state(),
    }
    # Beside the target, so that the replacement is one rename.
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".surefoot-")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    foot.note("checkpoint", f"saved step {foot._trainer.steps} to {path}")
    return path


def resume(foot: "Footing", model: Any, optimizer: Any, *others: Any) -> int:
    path = _path(foot)
    if not os.path.exists(path):
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or state.get("surefoot") != 1:
        raise ValueError(f"{path} is not a checkpoint of Footing.save: move it away, or give checkpoint= another path")
    if len(state["others"]) != len(others):
        raise ValueError(
            f"{path} holds the state of {len(state['others'])} objects besides model and optimizer, and resume was "
            f"given {len(others)}: pass the same ones as to save"
        )
    _bare(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    for other, saved in zip(others, state["others"]):
        other.load_state_dict(saved)
    torch.set_rng_state(state["random"])
    foot._trainer.steps = state["steps"]
    foot.note("checkpoint", f"resumed at step {state['steps']} from {path}")
    return state["steps"]


def _path(foot: "Footing") -> str:
    if foot._checkpoint is None:
        raise ValueError("this footing has no checkpoint: make it with Footing(checkpoint='run.pt')")
    return foot._checkpoint


def _bare(model: Any) -> Any:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
