"""Are two models the same? The program's verdicts, with its error rates, for modules of PyTorch.

Each sample of the inputs is one challenge. What every module gives out is sketched and compared, module by module; the
tolerance of a sample at a module is the noise of the first model there, which is measured: it runs again with another
order of summation, with half as many samples at once and, where the two models are stored in other dtypes or are on
other devices, in bfloat16. A sequential test over the samples decides (`surefoot-stats`, in Rust).
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import _capture, _native, _tree
from ._capture import OUTPUT, Site

# Numbers of one sample at one module that are sketched; more are thinned out evenly.
_MOST_NUMBERS = 1 << 18


@dataclasses.dataclass
class ComparedSite:
    """One module in both models."""

    name: str
    distance: float
    tolerance: float
    """What noise explains."""
    excess: float
    """How far the distance is beyond the tolerance, from 0 to 1, in the mean of all samples."""
    bits: float


@dataclasses.dataclass
class Comparison:
    """What `surefoot.compare` found. `str()` begins with SAME, DIFFERENT or UNDECIDED."""

    verdict: str
    """`"SAME"`, `"DIFFERENT"` or `"UNDECIDED"`."""
    first: str | None
    """The first module that diverges, if one does beyond doubt."""
    samples: int
    samples_used: int
    """After how many samples it was decided."""
    alpha: float
    """The largest probability of a false DIFFERENT."""
    beta: float
    """The largest probability of a false SAME."""
    sites: list[ComparedSite]
    curve: list[tuple[float, float]]
    """After each sample the decimal logarithms of the e-values against "same" and against "different"."""
    allowed: str
    """The noise that was allowed for: `"arithmetic"` or `"rounding"`."""
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def same(self) -> bool:
        return self.verdict == "SAME"

    def __str__(self) -> str:
        return "\n".join([self._summary(), *(f"  note  {note}" for note in self.notes)])

    def _summary(self) -> str:
        where = f"{len(self.sites)} modules"
        if self.verdict == "SAME":
            return (
                f"SAME: {where} agree within what noise explains, after {self.samples_used} of {self.samples} samples "
                f"(wrong with a probability of at most {self.beta:g})"
            )
        if self.verdict == "DIFFERENT":
            at = f", first at {self.first}" if self.first is not None else ""
            return (
                f"DIFFERENT: beyond what noise explains{at}, after {self.samples_used} of {self.samples} samples "
                f"(wrong with a probability of at most {self.alpha:g})"
            )
        return f"UNDECIDED: {self.samples} samples decide nothing: give more inputs"

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with the evidence after each sample and all modules."""
        from ._page import write_page

        sites = [(s.name, s.distance, s.tolerance, s.bits, s.name == self.first) for s in self.sites]
        facts = [("noise that was allowed for", self.allowed), ("PyTorch", torch.__version__)]
        facts += [("note", note) for note in self.notes]
        write_page(
            path,
            "Comparison of two models",
            self.verdict,
            self._summary(),
            sites,
            facts,
            curve=self.curve,
            used=self.samples_used,
            alpha=self.alpha,
            beta=self.beta,
        )


def compare(
    a: torch.nn.Module,
    b: torch.nn.Module,
    inputs: Iterable[Any],
    *,
    samples: int = 128,
    alpha: float = 0.01,
    beta: float = 0.01,
    delta: float = 0.3,
    forward: Callable[..., Any] | None = None,
) -> Comparison:
    """Says whether two models are the same: SAME, DIFFERENT or UNDECIDED, with bounded error rates.

    Arguments:
        a: the reference, whose own noise is the tolerance.
        b: the model in question. Modules of the same name and the same shape of output are compared, at least the
            whole models.
        inputs: batches, as the models take them; each sample of them is one piece of evidence. About 20 are needed.
        samples: at most so many samples are used.
        alpha, beta: the largest probabilities of a false DIFFERENT and of a false SAME.
        delta: the mean excess from which models count as different, as in `surefoot compare`.
        forward: `forward(model, *batch)`, where calling the model with the batch is not it.

    Both run in evaluation mode without gradients and are not changed.

    >>> import copy, surefoot, torch
    >>> _ = torch.manual_seed(0)
    >>> a = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    >>> b = copy.deepcopy(a)
    >>> inputs = [torch.randn(16, 8) for _ in range(4)]
    >>> surefoot.compare(a, b, inputs).verdict
    'SAME'
    >>> _ = b[2].weight.data.mul_(1.001)
    >>> found = surefoot.compare(a, b, inputs)
    >>> found.verdict, found.first
    ('DIFFERENT', 'output')
    """
    call = _capture.Forward(a, forward)
    _capture.Forward(b, forward)
    batches = _limited(inputs, samples)
    notes: list[str] = []
    names = _common(a, b, call, batches[0])
    rounding = _kinds(a) != _kinds(b)
    if rounding:
        notes.append(f"the models differ in dtype or device ({_kinds(a)}, {_kinds(b)}), so rounding to bfloat16 is allowed for")
    ours = _Sketched(a, call, names)
    plain = ours.run(batches)
    share = _capture.longest_sum(a) ** 0.5 * 2.0**-24
    order = [ours.run(batches, change=_capture.arithmetic(share, seed)) for seed in (1, 2)]
    noise = [("another order of summation", False, order)]
    if any(count > 1 for count, _ in batches):
        noise.append(("half as many at once", False, [ours.run(_halved(batches))]))
    if rounding:
        noise.append(("bf16", True, [ours.run(batches, change=_rounding(seed)) for seed in (0, 1)]))
    theirs = _Sketched(b, call, names, like=ours)
    other = theirs.run(batches)
    if theirs.broken:
        notes.append(f"the second model gives numbers that are not finite, first at {theirs.broken}")
    found = _native.compare_sketches(plain, other, noise, rounding=rounding, alpha=alpha, beta=beta, delta=delta)
    sites = [ComparedSite(names[at], *rest) for at, *rest in found["sites"]]
    return Comparison(
        found["verdict"],
        None if found["first"] is None else names[found["first"]],
        sum(count for count, _ in batches),
        found["samples_used"],
        alpha,
        beta,
        sites,
        found["curve"],
        "rounding" if rounding else "arithmetic",
        notes,
    )


def _limited(inputs: Iterable[Any], most: int) -> list[tuple[int, Any]]:
    """Batches with their numbers of samples, at most `most` samples in all."""
    if isinstance(inputs, (torch.Tensor, dict)):
        raise TypeError("inputs is an iterable of batches: for a single batch write [batch]")
    batches: list[tuple[int, Any]] = []
    left = most
    for batch in inputs:
        count = _tree.samples(batch)
        if not count:
            raise ValueError("a batch has no tensor with a first dimension, so it has no samples")
        if count > left:
            batch = _tree.narrow(batch, 0, 0, left, count)
            count = left
        batches.append((count, batch))
        left -= count
        if left <= 0:
            break
    if not batches:
        raise ValueError("inputs has no batches: there is nothing to compare the models on")
    return batches


def _halved(batches: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    halves = []
    for count, batch in batches:
        middle = (count + 1) // 2
        halves += [(middle, _tree.narrow(batch, 0, 0, middle, count))]
        if count > middle:
            halves += [(count - middle, _tree.narrow(batch, 0, middle, count, count))]
    return halves


def _kinds(model: torch.nn.Module) -> str:
    """The dtypes and devices of the weights."""
    kinds = {(str(p.dtype).removeprefix("torch."), p.device.type) for p in model.parameters() if p.is_floating_point()}
    return ", ".join(f"{dtype} on {device}" for dtype, device in sorted(kinds)) or "no weights"


def _by_sample(site: Site, samples: int) -> bool:
    return site.output.dim() > 0 and site.output.size(0) == samples and site.output.numel() > 0


def _common(a: torch.nn.Module, b: torch.nn.Module, call: _capture.Forward, first: tuple[int, Any]) -> list[str]:
    """The sites of both models with the same shape, by depth."""
    count, batch = first
    of_a, of_b = (
        {site.name: site for site in _run(model, call, batch) if _by_sample(site, count) and (site.is_leaf or site.name == OUTPUT)}
        for model in (a, b)
    )
    names = [name for name, site in of_a.items() if name in of_b and of_b[name].output.shape == site.output.shape]
    if not names:
        shapes = [tuple(of[OUTPUT].output.shape) if OUTPUT in of else None for of in (of_a, of_b)]
        raise ValueError(
            f"the two models have no module of the same name and shape in common (outputs {shapes[0]} and {shapes[1]}) whose "
            "first dimension is the batch's, so they can't be compared"
        )
    # The last module of a Sequential and the model itself are one: what is the same everywhere counts once.
    if OUTPUT in names and len(names) > 1 and torch.equal(of_a[names[-2]].output, of_a[OUTPUT].output):
        names.pop(-2)
    return names


def _run(model: torch.nn.Module, call: _capture.Forward, batch: Any, **how: Any) -> list[Site]:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return _capture.run(model, call, _tree.move(batch, device), **how)


class _Sketched:
    """Passes of one model as sketches. Numbers that are not finite are as far from the reference as can be."""

    def __init__(self, model: torch.nn.Module, call: _capture.Forward, names: list[str], like: "_Sketched | None" = None) -> None:
        self._model, self._call, self._names, self._like = model, call, names, like
        self._plain: list[dict[str, torch.Tensor]] = []
        self.broken: str | None = None

    def run(self, batches: list[tuple[int, Any]], change: _capture.Change | None = None) -> Any:
        sketches = _native.Sketches()
        for at, (count, batch) in enumerate(batches):
            found = {site.name: site.output for site in _run(self._model, self._call, batch, change=change)}
            missing = [name for name in self._names if name not in found or len(found[name]) != count]
            if missing:
                raise ValueError(f"the module {missing[0]} does not run for every batch: compare with inputs of one kind")
            numbers = []
            for name in self._names:
                flat = found[name].reshape(count, -1)
                flat = flat[:, :: -(-flat.size(1) // _MOST_NUMBERS)].float().cpu().contiguous()
                numbers.append(self._finite(name, flat, at))
            sketches.add(count, [_bytes(flat) for flat in numbers])
        return sketches

    def _finite(self, name: str, flat: torch.Tensor, batch: int) -> torch.Tensor:
        """The reference must be finite; where the other is not, it points the other way."""
        if flat.isfinite().all():
            if self._like is None and not any(name in kept for kept in self._plain[batch : batch + 1]):
                self._keep(batch, name, flat)
            return flat
        if self._like is None:
            raise ValueError(f"the first model gives numbers that are not finite at {name}: it can't be the reference")
        self.broken = self.broken or name
        rows = ~flat.isfinite().all(dim=1, keepdim=True)
        return torch.where(rows, -self._like._plain[batch][name], flat)

    def _keep(self, batch: int, name: str, flat: torch.Tensor) -> None:
        while len(self._plain) <= batch:
            self._plain.append({})
        self._plain[batch][name] = flat


def _bytes(flat: torch.Tensor) -> bytes:
    """The numbers as they are in memory; NumPy is not needed for that."""
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def _rounding(seed: int) -> _capture.Change:
    """Rounds every number to bfloat16: to the nearest with seed 0, otherwise up or down at random."""
    generator = torch.Generator().manual_seed(seed)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if seed == 0:
            return tensor.to(torch.bfloat16).to(tensor.dtype)
        wide = tensor.float().contiguous()
        dither = torch.randint(0, 1 << 16, wide.shape, generator=generator, dtype=torch.int32).to(wide.device)
        return ((wide.view(torch.int32) + dither) & -(1 << 16)).view(torch.float32).to(tensor.dtype)

    return change
