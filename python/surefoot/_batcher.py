"""Calls of many threads as one: `Batcher`.

A thread of its own takes what callers have asked for, stacks requests of the same form along dimension 0, runs the model
once and hands each caller its rows. While the model runs, further requests gather, so the busier it is the larger its
batches are. A request that makes a stacked batch fail is found by running the requests one by one, and only its caller
is told.
"""

from __future__ import annotations

import collections
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

from . import _tree
from ._errors import kind_of

if TYPE_CHECKING:
    from ._footing import Footing


class _Request:
    def __init__(self, args: Any, kwargs: Any, samples: int) -> None:
        self.value = (args, kwargs)
        self.samples = samples
        self.form = _form(self.value, samples)
        self.result: Future[Any] = Future()


class Batcher:
    """Stacks the calls of many threads into batches.

    Arguments:
        model: a module, or any function of tensors whose first dimension is the batch; a module is put into evaluation
            mode. Calls run without gradients.
        max_batch: samples that run at once at most.
        max_wait: seconds to wait at most for as many calls as came together the last time.
        footing: answers faults: a batch that does not fit is split.

    Use it as a context, or call `close`.

    >>> import surefoot, torch
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> model = torch.nn.Linear(8, 2)
    >>> inputs = [torch.randn(1, 8) for _ in range(32)]
    >>> with surefoot.Batcher(model) as batcher, ThreadPoolExecutor(8) as pool:
    ...     outputs = list(pool.map(batcher, inputs))
    >>> all(torch.allclose(y, model(x), atol=1e-6) for x, y in zip(inputs, outputs))
    True
    """

    def __init__(
        self, model: Any, max_batch: int = 64, max_wait: float = 0.002, *, footing: "Footing | None" = None
    ) -> None:
        if not callable(model):
            raise TypeError(f"Batcher runs a torch.nn.Module or a function, not a {type(model).__name__}")
        if max_batch < 1:
            raise ValueError(f"max_batch is at least 1, not {max_batch}")
        self._device: torch.device | None = None
        if isinstance(model, torch.nn.Module):
            model.eval()
            self._device = next((p.device for p in model.parameters()), None)
        self._call = model if footing is None else footing.guard(model, split=0, name="batcher")
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._waiting: collections.deque[_Request] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = 0
        """How often the model ran."""
        self.calls = 0
        """How many calls were answered."""
        self._thread = threading.Thread(target=self._serve, name="surefoot-batcher", daemon=True)
        self._thread.start()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `model(*args, **kwargs)` gives, computed together with the calls of other threads."""
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        """The same, without waiting for it."""
        samples = _tree.samples((args, kwargs))
        if not samples:
            raise ValueError("the call has no tensor with a first dimension, so there is no batch to stack it into")
        request = _Request(args, kwargs, samples)
        with self._changed:
            if self._closed:
                raise RuntimeError("this Batcher is closed")
            self._waiting.append(request)
            self._changed.notify()
        return request.result

    def close(self) -> None:
        """Answers what was asked for before, then ends."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> "Batcher":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _serve(self) -> None:
        expected = 1
        while True:
            requests = self._next(expected)
            if not requests:
                return
            expected = len(requests)
            self._answer(requests)

    def _next(self, expected: int) -> list[_Request]:
        """The oldest request and those of its form that fit with it; none when closed. Waits a moment for `expected` calls:
        callers that were answered together tend to come back together."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return []
                self._changed.wait()
            first = self._waiting[0]
            deadline = time.monotonic() + self._max_wait
            while not self._closed and self._is_worth_waiting(first, expected):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            chosen, kept, samples = [], collections.deque(), 0
            for request in self._waiting:
                fits = request is first or (request.form == first.form and samples + request.samples <= self._max_batch)
                if fits:
                    chosen.append(request)
                    samples += request.samples
                else:
                    kept.append(request)
            self._waiting = kept
            return chosen

    def _is_worth_waiting(self, first: _Request, expected: int) -> bool:
        if len(self._waiting) < expected:
            alike = [request.samples for request in self._waiting if request.form == first.form]
            return sum(alike) < self._max_batch
        return False

    def _answer(self, requests: list[_Request]) -> None:
        requests = [request for request in requests if request.result.set_running_or_notify_cancel()]
        if not requests:
            return
        error: BaseException | None = None
        try:
            results = self._run(requests)
        except BaseException as raised:  # whatever it is, it belongs to a caller
            error = raised
        if error is None:
            for request, result in zip(requests, results):
                request.result.set_result(result)
        elif len(requests) == 1 or kind_of(error) == "device_lost":
            for request in requests:
                request.result.set_exception(error)
        else:
            # One of them is to blame; the others are not to suffer for it.
            for request in requests:
                try:
                    request.result.set_result(self._run([request])[0])
                except BaseException as raised:
                    request.result.set_exception(raised)
        self.calls += len(requests)

    def _run(self, requests: list[_Request]) -> list[Any]:
        sizes = [request.samples for request in requests]
        whole = sum(sizes)
        stacked = _stack([request.value for request in requests], sizes)
        if self._device is not None:
            stacked = _tree.move(stacked, self._device)
        args, kwargs = stacked
        with torch.no_grad():
            result = self._call(*args, **kwargs)
        self.batches += 1
        if len(requests) == 1:
            return [result]
        if not any(True for t in _tree.tensors(result) if t.dim() and t.size(0) == whole):
            raise TypeError(
                f"the model's result has no dimension of the {whole} samples that were stacked, so it can't be taken apart"
            )
        results, start = [], 0
        for size in sizes:
            results.append(_tree.narrow(result, 0, start, start + size, whole))
            start += size
        return results


def _stack(values: list[Any], sizes: list[int]) -> Any:
    """Requests of one form as one batch: tensors of the batch's size are joined, all others are the same anyway."""
    if len(values) == 1:
        return values[0]
    columns = list(zip(*(_tree.tensors(value) for value in values)))
    joined = [
        torch.cat(column) if column[0].dim() and column[0].size(0) == sizes[0] else column[0] for column in columns
    ]
    remaining = iter(joined)
    return _tree.change(values[0], lambda _: next(remaining))


def _form(value: Any, samples: int) -> Any:
    """Requests with equal forms can be stacked: structure, dtypes, and shapes but for the batch."""
    parts: list[Any] = []

    def visit(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() and tensor.size(0) == samples:
            parts.append((tuple(tensor.shape[1:]), tensor.dtype, tensor.device))
        else:
            # Not a part of the batch: only requests with this very tensor go together.
            parts.append((tuple(tensor.shape), tensor.dtype, tensor.device, id(tensor)))
        return tensor

    _tree.change(value, visit)
    return (tuple(parts), _skeleton(value))


def _skeleton(value: Any) -> Any:
    """What is left of a structure without its tensors, comparable."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    children = _tree._children(value)
    if children:
        return (type(value).__name__, tuple((key, _skeleton(child)) for key, child in children))
    return repr(value)
