"""One training step that survives faults and keeps the effective batch.

The protocol:

1. forward and backward run as the guarded work `step`, in as many micro-batches as fit. Each attempt begins with the
   same random state, the same buffers and no gradients; a failed one leaves none.
2. With several processes, ranks agree that all have gradients, then gradients are reduced once (`_peers`).
3. The optimizer runs as the guarded work `optimizer`. What it changes is saved before and put back if it fails.

Gradients of micro-batches add up to the whole batch's: a mean loss is weighted by each part's share of the samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import _devices, _recompute, _tree
from ._errors import Fault, PeerFailed, warn
from ._random import RandomState
from ._snapshot import Buffers, Gradients, OptimizerState, changed_by, modules_of, trained_parameters
from ._uninterrupted import can_stop_halfway

if TYPE_CHECKING:
    from ._footing import Footing

# After this many steps on another device, the first one is tried again.
_STEPS_AWAY = 50

_NOTHING = contextlib.nullcontext()

_COMPUTE = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass
class StepOptions:
    """How a step computes its loss and updates the model; see `Footing.step`."""

    reduction: str = "mean"
    weight: Callable[..., Any] | None = None
    scaler: Any = None
    clip_norm: float | None = None
    accumulate: int = 1
    name: str = "step"


@dataclasses.dataclass
class _Known:
    """What is remembered of a model between steps."""

    buffers: Buffers
    recomputes: bool
    has_batch_norm: bool
    calls: int = 0
    updated: weakref.WeakSet[torch.optim.Optimizer] = dataclasses.field(default_factory=weakref.WeakSet)
    away: int = 0
    warned: bool = False
    saved: OptimizerState | None = None
    saved_is_decided: bool = False


class Trainer:
    """Runs the steps of a footing."""

    def __init__(self, foot: "Footing") -> None:
        self._foot = foot
        self._models: weakref.WeakKeyDictionary[torch.nn.Module, _Known] = weakref.WeakKeyDictionary()
        self.steps = 0
        self.grad_norm: torch.Tensor | None = None

    def step(self, model: Any, optimizer: Any, batch: Any, loss_fn: Any, options: StepOptions) -> torch.Tensor:
        bare, samples = _checked(model, optimizer, batch, loss_fn, options)
        known = self._known(bare)
        peers = self._foot._peers_of(model)
        modules = modules_of(bare)
        parameters = trained_parameters(bare, modules)
        if not parameters:
            raise ValueError("no parameter of the model requires a gradient, so there is nothing to train")
        known.buffers.save(bare, modules)
        gradients = Gradients(parameters)
        try:
            loss = self._gradients(model, bare, optimizer, batch, samples, loss_fn, options, known, gradients, parameters, peers)
        except BaseException as error:
            gradients.put_back()
            if peers is not None and isinstance(error, Exception) and not isinstance(error, PeerFailed):
                peers.say_failed(error)
            raise
        if peers is not None:
            peers.agree(model, optimizer, parameters)
        gradients.add()
        known.calls += 1
        if known.calls % options.accumulate:
            return loss
        if peers is not None:
            peers.reduce(parameters)
            peers.share_buffers(model)
        try:
            self._update(bare, optimizer, parameters, options, known)
        except Exception as error:
            if peers is not None:
                peers.say_failed(error)
            raise
        self.steps += 1
        return loss

    def _gradients(
        self, model, bare, optimizer, batch, samples, loss_fn, options, known, gradients, parameters, peers
    ) -> torch.Tensor:
        foot = self._foot
        home = parameters[0].device
        random = RandomState(home)
        whole = _weight(options, batch, samples)
        scale = 1.0 / options.accumulate if options.reduction == "mean" else 1.0
        budget = foot._budget

        def attempt_once(attempt) -> torch.Tensor:
            if attempt.attempt > 1:
                random.restore()
                known.buffers.restore(bare)
            device = _devices.torch_device(attempt.device)
            self._settle(bare, parameters, optimizer, device)
            if attempt.parts > 1 and known.has_batch_norm and not known.warned:
                known.warned = True
                foot.note("batch_norm", f"batch norm sees {attempt.parts} smaller batches instead of one of {samples}")
                warn(
                    f"the batch of {samples} is run in {attempt.parts} parts to fit, and batch norm computes its "
                    "statistics from each part: results differ from the whole batch's. GroupNorm or LayerNorm don't"
                )
            total = None
            gradients.clear()
            try:
                with contextlib.ExitStack() as stack:
                    if peers is not None:
                        stack.enter_context(peers.without_sync(model))
                    stack.enter_context(_recompute.recomputing(bare, attempt.checkpointing))
                    for start, stop in attempt.ranges:
                        part = batch if attempt.parts == 1 else _tree.narrow(batch, 0, start, stop, samples)
                        part = _tree.move(part, device)
                        with budget.measured(attempt, options.name, stop - start) if budget else _NOTHING:
                            share = self._part(attempt, bare, part, stop - start, whole, scale, loss_fn, options, device)
                        total = share if total is None else total + share
                    if peers is not None:
                        peers.prepare(parameters)
            except BaseException:
                gradients.clear()
                known.buffers.learn(bare)
                raise
            known.buffers.learn(bare)
            return total if scale == 1.0 else total / scale

        rungs = ["split"]
        if known.recomputes:
            rungs.append("checkpoint")
        if options.scaler is None:
            rungs.append("precision")
        stay = _devices.name_of(home)
        if stay != foot._native.device:
            known.away += 1
        if known.away >= _STEPS_AWAY:
            known.away, stay = 0, foot._native.device
        if budget is not None and budget.scout(attempt_once, options.name, samples, stay):
            random.restore()
            known.buffers.restore(bare)
        loss = foot._run(options.name, attempt_once, samples, rungs, start=stay)
        if known.buffers.unsaved:
            names = ", ".join(sorted(known.buffers.unsaved))
            known.buffers.unsaved.clear()
            foot.note("buffers", f"a failed attempt changed buffers that were not saved: {names}")
        return loss

    def _part(self, attempt, bare, part, samples, whole, scale, loss_fn, options, device) -> torch.Tensor:
        """Forward and backward of one micro-batch; gives its share of the loss."""
        attempt.point("operation")
        weight = 1.0
        if options.reduction == "mean" and attempt.parts > 1:
            weight = _weight(options, part, samples) / whole
            if weight == 0.0:
                # A mean over nothing is NaN; it has no part in the whole batch's.
                return torch.zeros((), device=device)
        dtype = _COMPUTE.get(attempt.compute)
        lower = torch.autocast(device.type, dtype) if dtype is not None else _NOTHING
        with lower:
            loss = _loss_of(loss_fn(bare, *part) if isinstance(part, (tuple, list)) else loss_fn(bare, part))
        share = loss if weight * scale == 1.0 else loss * (weight * scale)
        attempt.point("operation")
        (share if options.scaler is None else options.scaler.scale(share)).backward()
        return share.detach()

    def _update(self, bare, optimizer, parameters, options, known) -> None:
        """The optimizer's update, whole or not at all."""
        foot, scaler = self._foot, options.scaler
        if all(parameter.grad is None for parameter in parameters):
            raise ValueError("no parameter has a gradient: the loss does not depend on the model that step was given")
        if scaler is not None and options.clip_norm is not None:
            scaler.unscale_(optimizer)
        is_first = optimizer not in known.updated
        protect = is_first or scaler is not None or foot._is_drilled or can_stop_halfway(optimizer, parameters)
        state = self._protection(optimizer, known) if protect else None
        is_saved = clipped = False
        versions: list[int] | None = None if protect else []

        def attempt_once(attempt) -> None:
            nonlocal clipped, is_saved, versions
            if is_saved:
                state.restore(optimizer)
            elif attempt.attempt > 1 and versions is not None and versions != [tensor._version for tensor in changed_by(optimizer)]:
                raise Fault(
                    "the optimizer's update stopped half-way and can't be undone, since there was no copy of its state: "
                    "parameters and moments are partly updated. Load the last checkpoint (foot.resume does it) and go on from there",
                    operation="optimizer",
                )
            self._settle(bare, parameters, optimizer, _devices.torch_device(attempt.device))
            if state is not None and not is_saved:
                state.save(optimizer)
                is_saved = True
            elif protect and state is None and versions is None:
                versions = [tensor._version for tensor in changed_by(optimizer)]
            if options.clip_norm is not None and not clipped:
                self.grad_norm = _clip([p.grad for p in parameters if p.grad is not None], options.clip_norm)
                clipped = True
            with _tensor_by_tensor(optimizer, attempt.parts > 1), _halfway(attempt, optimizer):
                scaler.step(optimizer) if scaler is not None else optimizer.step()

        home = _devices.name_of(parameters[0].device)
        gradients = foot.last
        try:
            # In two parts means tensor by tensor: the update of many tensors at once needs memory for all of them.
            foot._run("optimizer", attempt_once, 2, ["split"], start=home)
        except Exception:
            if is_saved:
                state.restore(optimizer)
            raise
        known.updated.add(optimizer)
        foot.last = gradients.followed_by(foot.last)
        if scaler is not None:
            scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def _protection(self, optimizer, known: _Known) -> OptimizerState | None:
        """Where the optimizer's state is copied to: its own device if there is room, else the host's memory."""
        if not known.saved_is_decided or known.saved is None:
            size = OptimizerState.bytes(optimizer)
            if not known.saved_is_decided and not optimizer.state:
                size *= 3  # moments are made in the first update
            known.saved_is_decided = True
            device = next(p.device for g in optimizer.param_groups for p in g["params"])
            room = self._foot._native.available(_devices.name_of(device))
            host = self._foot._native.available("cpu")
            if room is None or room > 2 * size:
                known.saved = OptimizerState()
            elif host is not None and host > 2 * size:
                known.saved = OptimizerState(torch.device("cpu"))
            else:
                self._foot.note("optimizer", "there is no memory for a copy of the optimizer's state: an update that stops half-way can't be undone")
        return known.saved

    def _settle(self, bare: torch.nn.Module, parameters: list[torch.nn.Parameter], optimizer: Any, device: torch.device) -> None:
        """Moves the model and the optimizer's state to `device` if they are elsewhere."""
        if _tree._is_on(parameters[0], device):
            return
        bare.to(device)
        for entry in optimizer.state.values():
            for key, value in entry.items():
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    entry[key] = value.to(device)

    def _known(self, bare: torch.nn.Module) -> _Known:
        known = self._models.get(bare)
        if known is None:
            norm = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in bare.modules())
            known = _Known(Buffers(bare), _recompute.supports(bare), norm)
            self._models[bare] = known
        return known


def _checked(model, optimizer, batch, loss_fn, options: StepOptions) -> tuple[torch.nn.Module, int]:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"step needs a torch.nn.Module as its model, not a {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"step needs a torch.optim.Optimizer, not a {type(optimizer).__name__}")
    if not callable(loss_fn):
        raise TypeError("step needs a function (model, *batch) -> loss, for example lambda m, x, y: F.mse_loss(m(x), y)")
    if options.reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is 'mean' or 'sum', not {options.reduction!r}")
    if options.accumulate < 1:
        raise ValueError(f"accumulate is 1 or more, not {options.accumulate}")
    samples = _tree.samples(batch)
    if samples is None:
        raise ValueError("the batch has no tensor with a first dimension to split: give step (x, y) with a batch dimension")
    if samples == 0:
        raise ValueError("the batch is empty: its first dimension has size 0")
    bare = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return bare, samples


def _weight(options: StepOptions, part: Any, samples: int) -> float:
    """What a part's mean is weighted by."""
    if options.weight is None:
        return float(samples)
    return float(options.weight(*part) if isinstance(part, (tuple, list)) else options.weight(part))


def _loss_of(result: Any) -> torch.Tensor:
    loss = result if isinstance(result, torch.Tensor) else getattr(result, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(result).__name__
        raise TypeError(f"the loss function returned {what}: step needs one number (a tensor without dimensions, or an object with .loss)")
    return loss


def _clip(grads: list[torch.Tensor], limit: float) -> torch.Tensor:
    """Scales gradients so that their norm is at most `limit`; gives the norm they had."""
    norm = torch.linalg.vector_norm(torch.stack([n.to(grads[0].device) for n in torch._foreach_norm(grads)]))
    torch._foreach_mul_(grads, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


@contextlib.contextmanager
def _tensor_by_tensor(optimizer, on: bool):
    """Updates one tensor after the other instead of all at once."""
    switches = [(group, key) for group in optimizer.param_groups for key in ("foreach", "fused") if key in group]
    before = [group[key] for group, key in switches]
    for group, key in switches if on else ():
        group[key] = False
    try:
        yield
    finally:
        for (group, key), value in zip(switches if on else (), before):
            group[key] = value


@contextlib.contextmanager
def _halfway(attempt, optimizer):
    """Lets a drill stop an update after half of the parameters, as a real lack of memory can."""
    if not attempt.is_drilled:
        yield
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    try:
        attempt.point("operation")
    except Fault:
        grads = [p.grad for p in parameters]
        for parameter in parameters[len(parameters) // 2 :]:
            parameter.grad = None
        optimizer.step()
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        raise
    yield
