"""What PyTorch code stands on: a chosen device, a memory budget, a policy, a journal, and work that is guarded."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from . import _devices, _native, _peers, _resume, _tree
from ._batches import batches
from ._budget import CpuBudget
from ._guard import Guarded
from ._outcome import Outcome
from ._probe import candidates
from ._step import StepOptions, Trainer


class Footing:
    """Chooses a device and runs work on it that survives faults.

    Arguments:
        device: `"auto"` (Metal, CUDA, XPU, then the CPU; each is probed in a child process), a device (`"cuda:1"`,
            a `torch.device`), or several in order of preference (`"cuda,cpu"`).
        memory: a budget such as `"6GiB"` or a number of bytes. PyTorch's allocator is told it where it can be; on
            the CPU work is measured, and refused before it would go over.
        journal: a file to which events are appended; `surefoot journal FILE` reads it. By default the one that
            `surefoot run --journal FILE` names.
        precision: `"fp32"`, `"bf16"` or `"fp16"`: heavy operations of guarded work run under autocast in it.
        allow: rungs that have to be allowed: `"precision"` lets an out-of-memory be answered by autocast.
        forbid: rungs that recovery may not take: `reclaim`, `split`, `checkpoint`, `precision`, `next_device`.
        on_fault: `"recover"`, or `"fail"` to raise the first fault.
        drill: faults on purpose, as `"out_of_memory:op=step,at=during,nth=2"`; also from `SUREFOOT_DRILL`.
        checkpoint: a file for `save` and `resume`; written as well when another rank of the job dies.
        peer_timeout: seconds that ranks wait for each other.

    >>> import surefoot
    >>> foot = surefoot.Footing(device="cpu")
    >>> foot.device
    device(type='cpu')
    >>> foot.reason
    'it was asked for'
    """

    def __init__(
        self,
        device: str | torch.device = "auto",
        memory: str | int | None = None,
        journal: str | os.PathLike[str] | None = None,
        *,
        precision: str = "fp32",
        allow: Iterable[str] = (),
        forbid: Iterable[str] = (),
        on_fault: str = "recover",
        drill: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        peer_timeout: float = 600.0,
    ) -> None:
        if on_fault not in ("recover", "fail"):
            raise ValueError(f"on_fault is 'recover' or 'fail', not {on_fault!r}")
        forbidden = list(forbid)
        if _peers.is_to_be_parallel():
            # A rank that went to another device alone could no longer reduce with the others.
            forbidden.append("next_device")
        wanted = _wanted(device)
        drills = drill if drill is not None else os.environ.get("SUREFOOT_DRILL")
        self._is_drilled = bool(drills)
        self._native = _native.Footing(
            engine=_devices,
            device=wanted,
            candidates=candidates() if wanted == "auto" else [],
            memory=None if memory is None else str(memory),
            journal=os.environ.get("SUREFOOT_JOURNAL") if journal is None else os.fspath(journal),
            precision=precision,
            allow=list(allow),
            forbid=forbidden,
            fail=on_fault == "fail",
            drill=drills,
        )
        self.reason: str = self._native.reason
        """Why the device was chosen."""
        self.last: Outcome | None = None
        """What happened in the latest guarded work: `faults`, `rungs`, `device`, `attempts`, `parts`."""
        self._checkpoint = None if checkpoint is None else os.fspath(checkpoint)
        self._peer_timeout = peer_timeout
        self._peers: _peers.Peers | None = None
        self._placed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._trainer = Trainer(self)
        limit = self._native.budget
        told = limit is not None and _devices.limit(self._native.device, limit)
        self._budget = CpuBudget(self, limit) if limit is not None and not told else None

    @property
    def device(self) -> torch.device:
        """The device that work starts on."""
        return _devices.torch_device(self._native.device)

    @property
    def health(self) -> dict[str, str]:
        """Each device of the chain: `healthy`, `suspect` or `lost`."""
        return dict(self._native.health())

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the gradients before the latest clipping."""
        return self._trainer.grad_norm

    @property
    def steps(self) -> int:
        """How many updates `step` has made, counting those before `resume`."""
        return self._trainer.steps

    def place(self, value: Any) -> Any:
        """Puts a model, a tensor or a structure of tensors on the device.

        A model is moved in place, as `Module.to` does, and moves along if work goes on on another device.

        >>> import surefoot, torch
        >>> foot = surefoot.Footing(device="cpu")
        >>> foot.place({"x": torch.ones(2), "name": "a"})
        {'x': tensor([1., 1.]), 'name': 'a'}
        """
        if isinstance(value, torch.nn.Module):
            value.to(self.device)
            self._placed.add(value)
            return value
        return _tree.move(value, self.device)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of `loader` on the device, copied one ahead where copies can overlap with work."""
        return batches(self, loader)

    def step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Any,
        loss_fn: Callable[..., Any],
        *,
        reduction: str | None = None,
        weight: Callable[..., Any] | None = None,
        scaler: Any = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        name: str = "step",
    ) -> torch.Tensor:
        """One training step: forward, backward, update, with the same effective batch whatever fits.

        `loss_fn(model, *batch)` gives the loss of a batch or of a part of it: one number, or an object with
        `.loss`. It may be called several times and must not change anything but the model. Gradients are cleared
        after the update. Gives the loss of the whole batch, detached.

        Arguments:
            reduction: whether the loss is a `"mean"` over the samples (the default, or what `loss_fn.reduction`
                says) or a `"sum"`.
            weight: for means that are not over samples: `weight(*batch)` gives the number of terms, for example
                `lambda x, y: (y != -100).sum()`.
            scaler: a `torch.amp.GradScaler`.
            clip_norm: the largest norm of all gradients together; `foot.grad_norm` tells what it was.
            accumulate: updates at every `accumulate`-th call only, with gradients averaged over the calls.
            name: distinguishes steps of several models, whose parts are learned separately.

        >>> import surefoot, torch
        >>> _ = torch.manual_seed(0)
        >>> foot = surefoot.Footing(device="cpu", drill="out_of_memory:count=2")
        >>> model = foot.place(torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> batch = (torch.randn(8, 4), torch.randn(8, 1))
        >>> loss = foot.step(model, optimizer, batch, lambda m, x, y: (m(x) - y).square().mean())
        >>> foot.last.parts, foot.last.rungs
        (2, ['reclaim', 'split'])
        """
        reduction = reduction or getattr(loss_fn, "reduction", "mean")
        options = StepOptions(reduction, weight, scaler, clip_norm, accumulate, name)
        return self._trainer.step(model, optimizer, batch, loss_fn, options)

    def guard(
        self,
        function: Callable[..., Any] | None = None,
        *,
        split: int | dict[str, int | None] | None = None,
        combine: Callable[[list[Any], list[int]], Any] | None = None,
        name: str | None = None,
    ) -> Any:
        """Makes a function survive faults; see `surefoot.guard`."""
        return Guarded.decorate(lambda: self, function, split, combine, name)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `function` once as guarded work, without splitting."""
        return Guarded(lambda: self, function, None, None, None)(*args, **kwargs)

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *others: Any) -> str:
        """Writes model, optimizer and `others` (whatever has a `state_dict`) to `checkpoint`, whole or not at all."""
        return _resume.save(self, model, optimizer, *others)

    def resume(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *others: Any) -> int:
        """Loads what `save` wrote, if it is there; gives the number of steps it had made, else 0."""
        return _resume.resume(self, model, optimizer, *others)

    def note(self, operation: str, text: str) -> None:
        """Records a remark in the journal."""
        self._native.note(operation, text)

    def events(self) -> list[dict[str, Any]]:
        """The latest events, oldest first, as the journal's file has them."""
        return self._native.events()

    def clean_up(self) -> int:
        """Returns unused memory of all opened devices; gives the bytes that came back."""
        return self._native.clean_up()

    def __repr__(self) -> str:
        return f"Footing(device={str(self.device)!r}, reason={self.reason!r})"

    def _run(
        self,
        name: str,
        work: Callable[[Any], Any],
        samples: int | None,
        rungs: list[str],
        start: str | None = None,
    ) -> Any:
        """Runs `work(attempt)` as guarded work; gives its value, and leaves what happened in `last`."""
        outcome = self._native.run(name, work, samples, rungs, start)
        self.last = Outcome.of(outcome)
        return outcome.value

    def _peers_of(self, model: Any) -> _peers.Peers | None:
        """The other ranks, if this job has any and the model is trained with them."""
        if not _peers.is_parallel():
            return None
        if self._peers is None:
            self._peers = _peers.Peers(self, self._peer_timeout)
        return self._peers


def _wanted(device: str | torch.device) -> str:
    """The text that names the devices, with a rank's own card where several processes share a machine."""
    text = str(device).replace("mps", "metal")
    rank = os.environ.get("LOCAL_RANK")
    if text == "auto" and rank is not None and torch.cuda.is_available():
        return f"cuda:{rank}"
    return f"{text}:{rank}" if text == "cuda" and rank is not None else text
