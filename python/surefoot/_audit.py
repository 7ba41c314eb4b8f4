"""A model on a device against the CPU, module by module: where do they part, and why.

The reference is a copy of the model on the CPU in float64, each of whose modules is given contiguous inputs. Its noise
is measured: it runs again with what goes into and comes out of every module moved by what another order of summation,
or the fewer digits of the device's precision, would move it. A module diverges where it is further from the reference than three times
the largest such deviation at that module. The first one that does, in the order of execution, is named, and the likely
cause is tried out.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import torch

from . import _capture, _devices, _tree
from ._capture import Site

# Runs of the disturbed reference, and how far beyond the largest deviation among them a module may be.
_NOISE_RUNS = 3
_MARGIN = 3.0

_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

CAUSES = {
    "overflow": "a number became too large for {dtype}",
    "not_finite": "it gave numbers that are not finite",
    "unsynchronised": "its output was read before it was written: a copy or a stream that nobody waited for",
    "non_contiguous": "it is wrong for inputs that are not contiguous in memory, and right for contiguous ones",
    "before": "its inputs are wrong already, though every module before it agrees: an operation between them",
    "wrong": "it computes something else on this device",
}

_ADVICE = {
    "overflow": "run this module in float32 or bfloat16: with torch.autocast(device.type, enabled=False): y = module(x.float())",
    "not_finite": "look at the inputs and weights of this module; a division by zero or a logarithm of zero gives such numbers",
    "unsynchronised": "leave out non_blocking=True for copies to the CPU, or call torch.cuda.synchronize() before the numbers are read; "
    "for streams of your own: torch.cuda.current_stream().wait_stream(stream)",
    "non_contiguous": "call .contiguous() on the input of this module",
    "before": "look at what is done to the tensors between the module before and this one",
    "wrong": "run this module on the CPU, or another implementation of it, and report it to the library that brings it",
}


@dataclasses.dataclass
class AuditedSite:
    """One call of a module, on the device and on the CPU."""

    name: str
    module: str
    deviation: float
    """The distance from the reference as a share of its length, the largest of all samples."""
    tolerance: float
    """What noise explains."""
    dtype: str
    shape: tuple[int, ...]
    inputs: list[tuple[int, ...]]

    @property
    def diverges(self) -> bool:
        return not self.deviation <= self.tolerance


@dataclasses.dataclass
class Audit:
    """What `surefoot.audit` found. `str()` begins with SAME or DIFFERENT."""

    verdict: str
    """`"SAME"` or `"DIFFERENT"`."""
    device: str
    precision: str
    sites: list[AuditedSite]
    first: AuditedSite | None = None
    """The first module that diverges."""
    cause: str | None = None
    """`overflow`, `not_finite`, `unsynchronised`, `non_contiguous`, `before` or `wrong`."""
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.verdict == "SAME"

    @property
    def why(self) -> str:
        """What is wrong with the first module, in words."""
        return "" if self.cause is None or self.first is None else CAUSES[self.cause].format(dtype=self.first.dtype)

    @property
    def advice(self) -> str:
        """What to do about it."""
        return "" if self.cause is None else _ADVICE[self.cause]

    def __str__(self) -> str:
        lines = [self._summary()]
        if self.first is not None:
            site = self.first
            inputs = ", ".join(str(list(shape)) for shape in site.inputs) or "none"
            lines += [
                f"  module   {site.name} ({site.module}), {site.dtype}, inputs {inputs}, output {list(site.shape)}",
                f"  how far  {site.deviation:.1e} of its length, where noise explains {site.tolerance:.1e}",
                f"  why      {self.why}",
                f"  try      {self.advice}",
            ]
        return "\n".join([*lines, *(f"  note     {note}" for note in self.notes)])

    def _summary(self) -> str:
        where = f"on {self.device} in {self.precision}"
        if self.first is None:
            return f"SAME: all {len(self.sites)} modules agree {where} with the CPU in float64 within what noise explains"
        return f"DIFFERENT: {self.first.name} is the first of {len(self.sites)} modules that diverges {where} from the CPU in float64"

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with all modules."""
        from ._page import write_page

        facts = [("device", self.device), ("precision", self.precision), ("PyTorch", torch.__version__)]
        facts += [("note", note) for note in self.notes]
        if self.first is not None:
            facts += [("why", self.why), ("try", self.advice)]
        sites = [(s.name, s.deviation, s.tolerance, 0.0, s is self.first) for s in self.sites]
        write_page(path, f"Audit on {self.device}", self.verdict, self._summary(), sites, facts)


def audit(
    model: torch.nn.Module,
    batch: Any,
    *,
    device: str | torch.device | None = None,
    precision: str | None = None,
    forward: Callable[..., Any] | None = None,
) -> Audit:
    """Compares a model on a device with the CPU, module by module, and names the first one that diverges.

    Arguments:
        batch: a tensor, a tuple of arguments or a dict of keyword arguments, as the model takes them. Of a pair
            of inputs and labels, a model with one argument is given the inputs.
        device: where to run it; by default where the model is. The model comes back to where it was.
        precision: `"bf16"` or `"fp16"` runs it under autocast; by default in the dtype that its weights have.
        forward: `forward(model, *batch)`, where calling the model with the batch is not it.

    The model runs in evaluation mode without gradients and is not changed. A copy of it in float64 has to fit into the
    host's memory.

    >>> import surefoot, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> found = surefoot.audit(model, torch.randn(32, 8))
    >>> found.ok, str(found)[:4], len(found.sites)
    (True, 'SAME', 4)
    """
    call = _capture.Forward(model, forward)
    home = next((p.device for p in model.parameters()), torch.device("cpu"))
    target = home if device is None else torch.device(str(device).replace("metal", "mps"))
    if precision not in (None, *_PRECISIONS):
        raise ValueError(f"precision is 'fp32', 'bf16' or 'fp16', not {precision!r}")
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    dtype = weights if precision in (None, "fp32") else _PRECISIONS[precision]
    notes: list[str] = []
    reference = _Reference(model, call, batch, notes)
    tolerances = reference.tolerances(_share(model, target, dtype))

    def candidate(**how: Any) -> list[Site]:
        with torch.autocast(target.type, dtype, enabled=precision in ("bf16", "fp16")):
            return _capture.run(model, call, _tree.move(batch, target), **how)

    model.to(target)
    try:
        found = {site.name: site for site in candidate(keep=True)}
        _devices.synchronize(_devices.name_of(target))
        sites = [_compared(site, found[site.name], tolerances[site.name]) for site in reference.sites if site.name in found]
        first = next((site for site in sites if site.diverges), None)
        cause = None if first is None else _cause(first, found[first.name], reference, candidate)
    finally:
        model.to(home)
    label = next((name for name, kind in _PRECISIONS.items() if kind == dtype), str(dtype).removeprefix("torch."))
    return Audit("SAME" if first is None else "DIFFERENT", str(target), label, sites, first, cause, notes)


class _Reference:
    """A copy of the model on the CPU in float64, and what its modules give."""

    def __init__(self, model: torch.nn.Module, call: _capture.Forward, batch: Any, notes: list[str]) -> None:
        self._call = call
        plain = _tree.change(_tree.move(batch, torch.device("cpu")), lambda t: t.detach().clone().contiguous())
        try:
            self._model = copy.deepcopy(model).cpu()
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"the model can't be copied ({error}), so there is no reference to compare with: "
                "keep tensors that are the result of operations out of its attributes"
            ) from error
        try:
            self._model.double()
            self._batch = _tree.change(plain, lambda t: t.double() if t.is_floating_point() else t)
            self.sites = self.run()
        except (RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            notes.append(f"the reference is in float32, since the model does not run in float64: {reason}")
            self._model.float()
            self._batch = _tree.change(plain, lambda t: t.float() if t.is_floating_point() else t)
            self.sites = self.run()

    def run(self, **how: Any) -> list[Site]:
        return _capture.run(self._model, self._call, self._batch, contiguous=lambda name: True, **how)

    def tolerances(self, share: float) -> dict[str, float]:
        """The tolerance of each site, from runs in which every number is moved by `share` of its size."""
        most = {site.name: share for site in self.sites}
        for seed in range(_NOISE_RUNS):
            disturbed = {site.name: site for site in self.run(change=_capture.arithmetic(share, seed))}
            for site in self.sites:
                if site.name in disturbed:
                    deviation = _deviation(site.output, disturbed[site.name].output)
                    most[site.name] = max(most[site.name], deviation if deviation < float("inf") else 0.0)
        return {name: _MARGIN * deviation for name, deviation in most.items()}


def _share(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> float:
    """By how much of its size the device's arithmetic may move a number: sums in float32, and rounding to the dtype."""
    summation = _capture.longest_sum(model) ** 0.5 * 2.0**-24
    rounding = torch.finfo(dtype).eps / 2
    tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    if device.type == "cuda" and dtype == torch.float32 and tf32:
        rounding = 2.0**-11  # TF32 keeps ten bits of a factor
    return summation + rounding


def _deviation(reference: torch.Tensor, other: torch.Tensor) -> float:
    """The distance as a share of the reference's length, of the worst entry along dimension 0; inf where a number is not finite."""
    ours, theirs = reference.double().cpu(), other.double().cpu()
    if ours.shape != theirs.shape:
        return float("inf")
    # What is not finite on both sides alike, such as the -inf of a mask, is no difference.
    alike = ~ours.isfinite() & ((ours == theirs) | (ours.isnan() & theirs.isnan()))
    ours, theirs = ours.masked_fill(alike, 0.0), theirs.masked_fill(alike, 0.0)
    if not (ours.isfinite().all() and theirs.isfinite().all()):
        return float("inf")
    if ours.numel() == 0:
        return 0.0
    rows = (len(ours), -1) if ours.dim() > 1 else (1, -1)
    lengths = ours.reshape(rows).norm(dim=1)
    apart = (ours - theirs).reshape(rows).norm(dim=1)
    # Sums that cancel out to almost nothing have the errors of larger ones, so small rows are measured by the size of all.
    floor = lengths.square().mean().sqrt()
    return float((apart / torch.maximum(lengths, floor).clamp_min(1e-30)).max())


def _compared(reference: Site, found: Site, tolerance: float) -> AuditedSite:
    dtype = str(found.output.dtype).removeprefix("torch.")
    deviation = _deviation(reference.output, found.output)
    return AuditedSite(found.name, found.module, deviation, tolerance, dtype, tuple(found.output.shape), found.shapes)


def _cause(first: AuditedSite, found: Site, reference: _Reference, candidate: Callable[..., list[Site]]) -> str:
    """Why a module diverges, by trying out what would mend it."""
    later = found.later
    if later is not None and later._version == found.version and not torch.equal(_numbers(later), _numbers(found.output)):
        return "unsynchronised"
    if not found.output.isfinite().all():
        return "overflow" if found.output.dtype == torch.float16 else "not_finite"
    name = first.name.partition("#")[0]
    expected = next(site for site in reference.sites if site.name == first.name)
    if found.strides:
        straight = {site.name: site for site in candidate(contiguous=lambda module: module == name)}
        if first.name in straight and _deviation(expected.output, straight[first.name].output) <= first.tolerance:
            return "non_contiguous"
    theirs = next((site.inputs for site in candidate(inputs_of=name) if site.name == first.name), [])
    ours = next((site.inputs for site in reference.run(inputs_of=name) if site.name == first.name), [])
    pairs = [(a, b) for a, b in zip(ours, theirs) if a.is_floating_point()]
    if any(_deviation(a, b) > first.tolerance for a, b in pairs):
        return "before"
    return "wrong"


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Comparable also where it is NaN."""
    return torch.nan_to_num(tensor.float().cpu())
