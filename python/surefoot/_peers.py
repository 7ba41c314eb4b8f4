"""Several processes that train one model (`torchrun`, DistributedDataParallel): agreeing, then reducing once.

An attempt runs without any collective operation, so a rank can fail, split and try again while the others wait in
one small all-reduce. That all-reduce says for each rank whether it has gradients. Only then gradients are averaged,
once. A rank that can't recover says so there, and the others end with its message instead of waiting for ever.

The agreement has a process group of its own (gloo, on the CPU), so it can't be mixed up with the job's own
operations, and a device that failed is not needed for it. The group is not made with `new_group`: when torchrun
starts ranks again it keeps its store, in which they would find the addresses of the ranks that died.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ._errors import Fault, PeerFailed

if TYPE_CHECKING:
    from ._footing import Footing

# Gradients are reduced in pieces of about this many bytes.
_BUCKET = 25 << 20

# How much of a rank's message the others are told.
_MESSAGE = 512


def is_parallel() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_to_be_parallel() -> bool:
    """Whether this process was started as one of several, even if it has not joined them yet."""
    return is_parallel() or int(os.environ.get("WORLD_SIZE", "1")) > 1


class Peers:
    """The other ranks of this job. Made by all ranks at their first step, which is a collective operation."""

    _made = 0

    def __init__(self, foot: "Footing", timeout: float) -> None:
        self._foot = foot
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        Peers._made += 1
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"surefoot/{again}/{Peers._made}", dist.distributed_c10d._get_default_store())
        limit = datetime.timedelta(seconds=timeout)
        groups = [dist.ProcessGroupGloo(self._store, self._rank, self._size, limit)]
        # A group's threads end with its last reference, and they must have ended before the interpreter does: one that
        # asks for the interpreter's lock later aborts the process, though all the work is done. So the list is emptied
        # at exit, or when `self` goes.
        weakref.finalize(self, groups.clear)
        self._groups = groups
        self._failed = False
        self._flat: dict[Any, torch.Tensor] = {}
        self._zeros: dict[torch.nn.Parameter, torch.Tensor] = {}

    def without_sync(self, model: Any) -> Any:
        """Keeps DistributedDataParallel from reducing inside an attempt."""
        return model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()

    def prepare(self, parameters: list[torch.nn.Parameter]) -> None:
        """Allocates what reducing needs. Part of a guarded attempt: after the agreement nothing may fail on one rank."""
        for parameter in parameters:
            key = (parameter.dtype, parameter.device)
            if parameter.numel() * parameter.element_size() <= _BUCKET and key not in self._flat:
                self._flat[key] = torch.empty(_BUCKET // parameter.element_size(), dtype=key[0], device=key[1])
        self._zeros = {p: torch.zeros_like(p) for p in parameters if p.grad is None}

    def agree(self, model: Any, optimizer: Any, parameters: list[torch.nn.Parameter]) -> None:
        """Waits until every rank has gradients; raises what a rank failed with."""
        try:
            said, missing = self._exchange("", bool(self._zeros))
            failed = {rank: text for rank, text in enumerate(said) if text}
            if not failed and missing:
                self._fill(parameters)
        except RuntimeError as error:
            if isinstance(error, Fault):
                raise
            self._lost(error, model, optimizer)
        if failed:
            self._failed = True
            rank, text = next(iter(failed.items()))
            raise PeerFailed(
                f"rank {rank} could not go on, so rank {self._rank} stops as well. Rank {rank} said: {text}",
                operation="agree",
            )

    def say_failed(self, error: BaseException) -> None:
        """Tells the others, once, that this rank can't go on."""
        if self._failed:
            return
        self._failed = True
        with contextlib.suppress(RuntimeError):  # they may be gone already
            self._exchange(str(error) or type(error).__name__, False)

    def _exchange(self, message: str, missing: bool) -> tuple[list[str], bool]:
        """Each rank's message, and whether any misses a gradient. Without messages it is one small all-reduce."""
        text = message.encode()[:_MESSAGE]
        most = torch.tensor([len(text), int(missing)], dtype=torch.int64)
        self._most(most)
        longest, any_missing = most.tolist()
        if longest == 0:
            return [""] * self._size, bool(any_missing)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        every = [torch.zeros_like(mine) for _ in range(self._size)]
        self._groups[0].allgather([every], [mine]).wait()
        return [bytes(other.tolist()).rstrip(b"\0").decode(errors="replace") for other in every], bool(any_missing)

    def _most(self, numbers: torch.Tensor) -> None:
        """Replaces each number by the largest that a rank has."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._groups[0].allreduce([numbers], options).wait()

    def _fill(self, parameters: list[torch.nn.Parameter]) -> None:
        """Gives a zero gradient to parameters that have one on another rank; those without any keep none."""
        has = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int64)
        self._most(has)
        for parameter, somewhere in zip(parameters, has.tolist()):
            if somewhere and parameter.grad is None:
                parameter.grad = self._zeros[parameter]

    def _lost(self, error: RuntimeError, model: Any, optimizer: Any) -> None:
        """A rank is gone: saves what there is, and says which one."""
        self._failed = True
        alive = self._roll_call()
        gone = [rank for rank in range(self._size) if rank not in alive] if alive else []
        who = f"rank {', '.join(map(str, gone))}" if gone else "another rank"
        saved = ""
        if model is not None and self._foot._checkpoint is not None and (not alive or min(alive) == self._rank):
            path = self._foot.save(model, optimizer)
            saved = f" The state before this step is in {path}."
        raise PeerFailed(
            f"{who} died or can't be reached ({str(error).splitlines()[0]}), so rank {self._rank} stops as well.{saved} "
            "Its own output says why it ended; torchrun --max-restarts=N starts all ranks again, and "
            "Footing.resume goes on from the checkpoint",
            operation="agree",
        ) from error

    def _roll_call(self) -> set[int]:
        """The ranks that still answer, through the store that torchrun keeps; empty if it is gone as well."""
        try:
            self._store.set(f"alive/{self._rank}", b"1")
            deadline = time.monotonic() + 3.0
            alive = {self._rank}
            while time.monotonic() < deadline and len(alive) < self._size - 1:
                alive = {rank for rank in range(self._size) if rank == self._rank or self._store.check([f"alive/{rank}"])}
                time.sleep(0.05)
            return alive
        except (RuntimeError, ValueError, AttributeError):
            return set()

    def reduce(self, parameters: list[torch.nn.Parameter]) -> None:
        """Averages gradients over all ranks, in place, in a few large pieces. Allocates nothing."""
        self._zeros = {}
        try:
            bucket: list[torch.Tensor] = []
            for parameter in parameters:
                grad = parameter.grad
                if grad is None:
                    continue
                if grad.nbytes > _BUCKET:
                    dist.all_reduce(grad)
                    grad /= self._size
                    continue
                full = sum(other.nbytes for other in bucket) + grad.nbytes > _BUCKET
                if bucket and (full or grad.dtype != bucket[0].dtype or grad.device != bucket[0].device):
                    self._average(bucket)
                    bucket = []
                bucket.append(grad)
            if bucket:
                self._average(bucket)
        except RuntimeError as error:
            self._lost(error, None, None)

    def _average(self, grads: list[torch.Tensor]) -> None:
        flat = self._flat[grads[0].dtype, grads[0].device][: sum(grad.numel() for grad in grads)]
        pieces = [piece.view(grad.shape) for piece, grad in zip(flat.split([grad.numel() for grad in grads]), grads)]
        torch._foreach_copy_(pieces, grads)
        dist.all_reduce(flat)
        flat /= self._size
        torch._foreach_copy_(grads, pieces)

    def share_buffers(self, model: Any) -> None:
        """Gives every rank the buffers of rank 0, as DistributedDataParallel does before a forward pass."""
        if not getattr(model, "broadcast_buffers", False):
            return
        for buffer in model.module.buffers():
            if buffer.numel():
                dist.broadcast(buffer, 0)
