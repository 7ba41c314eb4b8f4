"""A data loader that chooses its own settings and survives workers that die.

The batches of an epoch are decided before it begins, as lists of indices, so that after the death of a worker loading goes
on behind the last batch that was delivered: none is lost, none comes twice. A worker that dies is told from a dataset
that raises by the process itself; what a dataset raises reaches the caller unchanged.

What happens when a worker dies before the next batch is delivered:

1. the workers are started again;
2. again, with one worker, which needs least memory and shared memory, if there were more;
3. the samples of the batch are loaded one at a time, each in a process of its own; the sample that kills it is
   named in a `Fault`, or left out if that was asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ._errors import Fault, warn

if TYPE_CHECKING:
    from ._footing import Footing

# A batch that takes less than this is loaded in this process: passing it between processes takes as long.
_WORTH_A_WORKER = 2e-3
_MOST_WORKERS = 8
# The exit code of a trial whose dataset raised an exception: that is no death.
_RAISED = 77
# Samples that are loaded to measure.
_TRIED = 16


class Loader:
    """What `surefoot.loader` gives: iterate over it once an epoch."""

    def __init__(
        self,
        dataset: Any,
        batches: Callable[[], Iterable[Sequence[int]]],
        length: int,
        workers: int,
        reason: str,
        pinned: bool,
        skip_bad: bool,
        footing: "Footing | None",
        options: dict[str, Any],
    ) -> None:
        self.dataset = dataset
        self.workers = workers
        """How many processes load."""
        self.reason = reason
        """Why so many."""
        self.pinned = pinned
        """Whether batches come in pinned memory."""
        self.deaths = 0
        """How many workers have died so far."""
        self.skipped: list[int] = []
        """Samples that were left out because they kill their worker."""
        self._batches = batches
        self._length = length
        self._skip_bad = skip_bad
        self._footing = footing
        self._options = options

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        plan = [list(batch) for batch in self._batches()]
        done, tries = 0, 0
        while done < len(plan):
            workers = self.workers if tries < 2 else 1
            death: str | None = None
            for outcome in self._load(plan[done:], workers):
                if isinstance(outcome, _Death):
                    death = outcome.how
                    break
                done, tries = done + 1, 0
                yield outcome.batch
            if death is None:
                return
            self.deaths += 1
            tries += 1
            self._say(f"a worker that loads data {death} before batch {done} of {len(plan)}: it is started again")
            if tries >= (3 if self.workers > 1 else 2):
                plan[done] = self._without_bad(plan[done])
                tries = 0
                if not plan[done]:
                    del plan[done]

    def _load(self, batches: list[list[int]], workers: int) -> Iterator["_Loaded | _Death"]:
        loader = DataLoader(self.dataset, batch_sampler=batches, **self._settings(workers))
        iterator = iter(loader)
        _stop_raising_elsewhere(iterator)
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except RuntimeError:
                    how = _how_a_worker_died(iterator)
                    if how is None:
                        raise
                    yield _Death(how)
                    return
                yield _Loaded(batch)
        finally:
            shut_down = getattr(iterator, "_shutdown_workers", None)
            if shut_down is not None:
                shut_down()

    def _settings(self, workers: int) -> dict[str, Any]:
        settings = {**self._options, "num_workers": workers, "pin_memory": self.pinned}
        if workers == 0:
            for only_with_workers in ("prefetch_factor", "timeout", "multiprocessing_context"):
                settings.pop(only_with_workers, None)
        return settings

    def _without_bad(self, batch: list[int]) -> list[int]:
        """The batch without the samples that kill their worker; raises for the first one unless they may be left out."""
        good = []
        context = multiprocessing.get_context(self._options.get("multiprocessing_context"))
        for index in batch:
            trial = context.Process(target=_touch, args=(self.dataset, index))
            trial.start()
            trial.join()
            if not _died(trial):
                good.append(index)
                continue
            self.deaths += 1
            how = _ending(trial)
            if not self._skip_bad:
                raise Fault(
                    f"sample {index} of the dataset kills the worker that loads it: it {how}. Look at that sample, "
                    "or leave such samples out with skip_bad=True",
                    "data_loading",
                    "loader",
                    advice=[f"look at sample {index} of the dataset", "leave such samples out with skip_bad=True"],
                    reason=f"sample {index} kills the worker that loads it",
                )
            self.skipped.append(index)
            self._say(f"sample {index} kills the worker that loads it and is left out")
        return good

    def _say(self, text: str) -> None:
        warn(text)
        if self._footing is not None:
            self._footing.note("loader", text)


class _Loaded:
    def __init__(self, batch: Any) -> None:
        self.batch = batch


class _Death:
    def __init__(self, how: str) -> None:
        self.how = how


def loader(
    dataset: Any,
    batch_size: int = 1,
    shuffle: bool = False,
    *,
    sampler: Iterable[int] | None = None,
    drop_last: bool = False,
    workers: int | None = None,
    device: str | torch.device | None = None,
    footing: "Footing | None" = None,
    skip_bad: bool = False,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Any:
    """A loader whose workers may die, with workers, pinning and prefetching chosen for the device.

    Arguments:
        dataset: a dataset with `__len__` and `__getitem__`. An iterable dataset can be loaded too, but the death of one
            of its workers can't be survived, since nobody knows how far it was.
        workers: processes that load; by default as many as a measurement of the dataset suggests, none for one that is quick.
        device, footing: where batches go: pinned memory is used for CUDA and XPU, never for Metal.
        skip_bad: leave samples out that kill their worker, with a warning, instead of raising a `Fault` that names them.
        options: further arguments of `torch.utils.data.DataLoader`, such as `collate_fn`.

    Random augmentations of a batch that had to be loaded again are other ones.

    >>> import surefoot, torch
    >>> data = torch.utils.data.TensorDataset(torch.arange(10))
    >>> batches = surefoot.loader(data, batch_size=4)
    >>> [x.tolist() for (x,) in batches], batches.workers
    ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 0)
    """
    for name in ("num_workers", "pin_memory", "batch_sampler"):
        if name in options:
            raise TypeError(f"{name} is chosen by surefoot.loader" + ("; say workers= instead" if name == "num_workers" else ""))
    target = footing.device if footing is not None else torch.device(str(device or "cpu").replace("metal", "mps"))
    pinned = target.type in ("cuda", "xpu")
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size, drop_last=drop_last, num_workers=workers or 0, pin_memory=pinned, **options)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"a dataset has __len__ and __getitem__; a {type(dataset).__name__} lacks them")
    if sampler is None:
        sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
    elif shuffle:
        raise ValueError("give a sampler or shuffle=True, not both")
    batches = BatchSampler(sampler, batch_size, drop_last)  # type: ignore[arg-type]
    reason = "it was asked for"
    if workers is None:
        workers, reason = _measured(dataset, batch_size)
    return Loader(dataset, lambda: batches, len(batches), workers, reason, pinned, skip_bad, footing, options)


def _measured(dataset: Any, batch_size: int) -> tuple[int, str]:
    """How many workers, by what a few samples take."""
    count = min(len(dataset), batch_size, _TRIED)
    if not count:
        return 0, "the dataset is empty"
    dataset[0]  # the first one may open files
    times = []
    for index in range(count):
        start = time.perf_counter()
        dataset[index]
        times.append(time.perf_counter() - start)
    # The median, since other programs disturb a few.
    seconds = statistics.median(times) * batch_size
    told = f"a batch takes {seconds * 1e3:.1f} ms to load"
    if seconds < _WORTH_A_WORKER:
        return 0, f"{told}: too little for a process of its own"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores - 1, _MOST_WORKERS)), f"{told}, and this process may use {cores} cores"


def _stop_raising_elsewhere(iterator: Any) -> None:
    """Keeps PyTorch's signal handler from raising a worker's death in whatever code happens to run then.

    It would be raised inside the caller's training step, where nobody can answer it; without it, the death is found
    when the next batch is asked for.
    """
    from torch.utils.data._utils import signal_handling

    if getattr(iterator, "_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def _how_a_worker_died(iterator: Any) -> str | None:
    """What the first dead worker died of; None if all are alive, so that the dataset itself raised."""
    return next((_ending(worker) for worker in getattr(iterator, "_workers", []) if _died(worker)), None)


def _died(worker: Any) -> bool:
    return worker.exitcode not in (None, 0, _RAISED)


def _ending(worker: Any) -> str:
    return f"died by signal {-worker.exitcode}" if worker.exitcode < 0 else f"ended with {worker.exitcode}"


def _touch(dataset: Any, index: int) -> None:
    """Loads one sample in a process of its own. What the dataset raises is raised again when the batch is loaded."""
    try:
        dataset[index]
    except Exception:
        os._exit(_RAISED)
