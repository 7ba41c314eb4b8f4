"""A model for many threads: `Lanes`.

A lane is what one caller at a time runs on: a stream of its own on CUDA and XPU if there are several. How many there are
is measured with the first inputs: small models are fastest with one, since Python runs one thread at a time, larger ones may
not be. On Metal there is one lane, since two threads abort the process there. A caller holds a lane only while the model
runs. The first call with new shapes runs alone with its shapes, so that what is compiled or tuned for them is
made once; callers with other shapes do not wait for it. A fault is answered when all lanes are free, by guarded work.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import _tree
from ._errors import kind_of

if TYPE_CHECKING:
    from ._footing import Footing

# No more lanes than this are tried.
_MOST_LANES = 8
# More lanes have to be faster by this factor to be chosen.
_WORTH = 1.1

_CALLERS_OWN = ("shape_mismatch", "data_loading", "model_loading", "not_device_related")


class Lanes:
    """Runs a model for many threads at once, without locks in the caller's code.

    Arguments:
        model: a module, already on its device; it is put into evaluation mode.
        lanes: how many callers run at once; by default one on Metal, and elsewhere the number that gave most calls a second
            with the first inputs.
        timeout: seconds that a caller waits for a lane before `TimeoutError`; for ever by default.
        footing: answers faults: splits the batch, or goes on on another device.

    >>> import surefoot, torch
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> model = torch.nn.Linear(8, 2)
    >>> lanes = surefoot.Lanes(model, lanes=2)
    >>> inputs = [torch.randn(4, 8) for _ in range(10)]
    >>> with ThreadPoolExecutor(4) as pool:
    ...     outputs = list(pool.map(lanes, inputs))
    >>> all(torch.allclose(y, model(x), atol=1e-6) for x, y in zip(inputs, outputs))
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        lanes: int | None = None,
        *,
        timeout: float | None = None,
        footing: "Footing | None" = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"Lanes runs a torch.nn.Module, not a {type(model).__name__}")
        if lanes is not None and lanes < 1:
            raise ValueError(f"lanes is at least 1, not {lanes}")
        self._model = model.eval()
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._timeout = timeout
        self._footing = footing
        self._warm: dict[Any, threading.Event] = {}
        self._lock = threading.Lock()
        self._free: queue.LifoQueue[Any] = queue.LifoQueue()
        self.count = 0
        """How many callers run at once; 0 until the first call has measured it."""
        self.reason = ""
        """Why it is that many."""
        if self._device.type == "mps":
            self._open(1, "two threads abort the process on Metal")
        elif lanes is not None:
            self._open(lanes, "it was asked for")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model as `model(*args, **kwargs)` would, without gradients."""
        inputs = args if not kwargs and all(isinstance(a, torch.Tensor) for a in args) else list(_tree.tensors((args, kwargs)))
        if any(not _tree._is_on(tensor, self._device) for tensor in inputs):
            args, kwargs = _tree.move((args, kwargs), self._device)
        self._measure_once(args, kwargs)
        with self._first_of_its_shape(tuple((tensor.shape, tensor.dtype) for tensor in inputs)):
            try:
                with self._lane() as stream:
                    return self._run(stream, args, kwargs)
            except Exception as error:
                if self._footing is None or kind_of(error) in _CALLERS_OWN:
                    raise
            # Outside the except block, so that the traceback's tensors can be freed.
            return self._recovered(args, kwargs)

    def _run(self, stream: Any, args: Any, kwargs: Any) -> Any:
        with torch.no_grad():
            if stream is None:
                return self._model(*args, **kwargs)
            module = getattr(torch, self._device.type)
            current = module.current_stream(self._device)
            stream.wait_stream(current)
            with module.stream(stream):
                result = self._model(*args, **kwargs)
            current.wait_stream(stream)
            # Memory that one stream allocated and another uses is not to be handed out again before both are done.
            for tensor in _tree.tensors((args, kwargs)):
                if tensor.device.type == self._device.type:
                    tensor.record_stream(stream)
            for tensor in _tree.tensors(result):
                if tensor.device.type == self._device.type:
                    tensor.record_stream(current)
            return result

    def _recovered(self, args: Any, kwargs: Any) -> Any:
        """Runs as guarded work while nobody else runs: memory that other callers use is free, and the model may move."""
        assert self._footing is not None
        with contextlib.ExitStack() as stack:
            for _ in range(self.count):
                stack.enter_context(self._lane())
            with torch.no_grad():
                result = self._footing.guard(self._model, split=0, name="lanes")(*args, **kwargs)
            self._device = next((p.device for p in self._model.parameters()), self._device)
            return result

    @contextlib.contextmanager
    def _lane(self) -> Iterator[Any]:
        try:
            stream = self._free.get(timeout=self._timeout)
        except queue.Empty:
            raise TimeoutError(f"no lane became free within {self._timeout} s: all {self.count} are in use") from None
        try:
            yield stream
        finally:
            self._free.put(stream)

    @contextlib.contextmanager
    def _first_of_its_shape(self, signature: Any) -> Iterator[None]:
        """Lets the first call with a signature through alone; those that come meanwhile wait for it."""
        with self._lock:
            warm = self._warm.get(signature)
            first = warm is None
            if warm is None:
                warm = self._warm[signature] = threading.Event()
        if not first:
            warm.wait()
            yield
            return
        try:
            yield
        except BaseException:
            # Not warm: the next call tries again.
            with self._lock:
                self._warm.pop(signature, None)
            raise
        finally:
            warm.set()

    def _open(self, count: int, reason: str) -> None:
        for stream in self._streams(count):
            self._free.put(stream)
        self.count, self.reason = count, reason

    def _streams(self, count: int) -> list[Any]:
        """What `count` lanes run on: streams where the device has them and there are several; else the caller's own."""
        if count == 1 or self._device.type not in ("cuda", "xpu"):
            return [None] * count
        return [getattr(torch, self._device.type).Stream(self._device) for _ in range(count)]

    def _measure_once(self, args: Any, kwargs: Any) -> None:
        if self.count:
            return
        with self._lock:
            if self.count:
                return
            rates: dict[int, float] = {}
            self._run(None, args, kwargs)
            count = 1
            while count <= min(_MOST_LANES, os.cpu_count() or 1):
                rates[count] = self._rate(count, args, kwargs)
                if count > 1 and rates[count] < rates[count // 2]:
                    break
                count *= 2
            best = 1
            for count, rate in rates.items():
                if rate > _WORTH * rates[best]:
                    best = count
            told = ", ".join(f"{count}: {rate:.0f}/s" for count, rate in rates.items())
            self._open(best, f"measured calls by lanes: {told}")

    def _rate(self, count: int, args: Any, kwargs: Any, seconds: float = 0.05) -> float:
        """Calls a second by `count` threads, each of which waits for its results as callers do."""
        done = [0] * count
        streams = self._streams(count)
        start = time.perf_counter()

        def work(at: int) -> None:
            while not done[at] or time.perf_counter() - start < seconds:
                self._run(streams[at], args, kwargs)
                if self._device.type in ("cuda", "xpu"):
                    getattr(torch, self._device.type).current_stream(self._device).synchronize()
                done[at] += 1

        workers = [threading.Thread(target=work, args=(at,)) for at in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(done) / (time.perf_counter() - start)
