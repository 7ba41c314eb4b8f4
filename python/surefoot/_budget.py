"""Keeping a memory budget on the CPU, where PyTorch has no allocator that could be told one.

What a piece of work takes is measured: at first with one sample, then with four times as many as long as that is sure
to fit, whose results are thrown away; then with every micro-batch. A micro-batch that would not fit is refused before it runs, which the ladder answers by
splitting. Measured is the peak of the process's resident memory, so other threads' memory counts as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from ._footing import Footing


# What a measurement of resident memory may miss: pages that were free already.
_NOISE = 8 << 20


@dataclasses.dataclass
class _Cost:
    """Bytes that `samples` samples took; two measurements make a line."""

    points: dict[int, int] = dataclasses.field(default_factory=dict)

    def add(self, samples: int, bytes_: int) -> None:
        self.points[samples] = max(bytes_, self.points.get(samples, 0))

    def of(self, samples: int) -> int:
        """The estimate for so many samples, by the line through the smallest and the nearest measurement."""
        if samples in self.points:
            return self.points[samples]
        sizes = sorted(self.points)
        low, high = sizes[0], max((size for size in sizes if size <= samples), default=sizes[-1])
        if high == low:
            high = sizes[-1]
        if high == low:
            return self.points[low] * samples // low
        slope = max(0, (self.points[high] - self.points[low]) / (high - low))
        return max(0, int(self.points[low] + slope * (samples - low)))


@dataclasses.dataclass
class _Trial:
    """An attempt of a few samples that only measures. Has what guarded work asks of an attempt."""

    device: str
    ranges: list[tuple[int, int]]
    parts: int = 2  # as if it were one part of more: the loss is weighted
    attempt: int = 1
    compute: str = "fp32"
    checkpointing: bool = False
    is_drilled: bool = False

    def point(self, kind: str) -> None:
        """No drill strikes a trial."""


class CpuBudget:
    """What work takes on the CPU, and whether the next micro-batch fits."""

    def __init__(self, foot: "Footing", limit: int) -> None:
        self._foot = foot
        self._limit = limit
        self._costs: dict[str, _Cost] = {}

    def scout(self, attempt_once: Callable[[Any], Any], name: str, samples: int, device: str) -> bool:
        """Measures ever more samples if nothing is known yet; says whether it did."""
        if name in self._costs or device != "cpu":
            return False
        cost, size = _Cost(), 1
        self._foot._native.clean_up()
        while size <= samples:
            before = _native.resident()
            if size > 1 and before + 4 * cost.points[size // 4] + _NOISE > self._limit:
                break
            _native.forget_peak_resident()
            attempt_once(_Trial(device, [(0, size)]))
            cost.add(size, max(0, (_native.peak_resident() or _native.resident()) - before))
            size *= 4
        self._costs[name] = cost
        return True

    @contextlib.contextmanager
    def measured(self, attempt: Any, name: str, samples: int) -> Iterator[None]:
        """Admits a micro-batch, runs it inside, and measures it."""
        cost = self._costs.get(name)
        if cost is None or isinstance(attempt, _Trial) or attempt.device != "cpu":
            yield
            return
        before = _native.resident()
        with attempt.admit(cost.of(samples)):
            _native.forget_peak_resident()
            yield
        peak = _native.peak_resident()
        if peak is None:
            return
        cost.add(samples, max(0, peak - before))
        if peak > self._limit:
            self._foot.note(name, f"{peak - self._limit} bytes over the budget were used with {samples} samples")
