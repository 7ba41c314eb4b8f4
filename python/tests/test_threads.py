"""`Lanes` and `Batcher`: many threads get the outputs that each would have got alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import surefoot


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


def inputs(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(1 + at % 3, 16, generator=generator) for at in range(count)]


def assert_golden(model, given, found):
    with torch.no_grad():
        for x, y in zip(given, found):
            assert torch.allclose(y, model(x), rtol=1e-5, atol=1e-6)


class Counted(nn.Module):
    """Notes how many callers are inside at once, and in which batches they come."""

    def __init__(self):
        super().__init__()
        self.inner, self.lock, self.inside, self.most, self.sizes = network(), threading.Lock(), 0, 0, []

    def forward(self, x):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.sizes.append(len(x))
        time.sleep(0.002)
        try:
            return self.inner(x)
        finally:
            with self.lock:
                self.inside -= 1


class Gated(nn.Module):
    """Says that it was entered, and goes on when it is let."""

    def __init__(self):
        super().__init__()
        self.entered, self.go, self.sizes = threading.Event(), threading.Event(), []

    def forward(self, x):
        self.sizes.append(len(x))
        self.entered.set()
        assert self.go.wait(120)
        return x + 1


def test_lanes_give_each_caller_its_own_output_and_never_run_more_at_once():
    model = Counted()
    lanes, given = surefoot.Lanes(model, lanes=3), inputs(60)
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lanes, given))
    assert_golden(model.inner, given, found)
    assert model.most <= 3 and not found[0].requires_grad


def test_as_many_callers_run_at_once_as_there_are_lanes():
    class Together(nn.Module):
        def __init__(self):
            super().__init__()
            self.all_inside = threading.Barrier(3, timeout=120)

        def forward(self, x):
            self.all_inside.wait()
            return x + 1

    lanes = surefoot.Lanes(Together(), lanes=3)
    # Of three shapes, since the first calls of one shape wait for each other.
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lanes, [torch.zeros(size) for size in (1, 2, 3)]))
    assert [y.tolist() for y in found] == [[1.0], [1.0] * 2, [1.0] * 3]


def test_the_first_call_with_a_shape_runs_alone_with_it():
    model = Gated()
    lanes = surefoot.Lanes(model, lanes=8)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(lanes, torch.ones(2, 16)) for _ in range(8)]
        assert model.entered.wait(120)
        time.sleep(0.2)
        assert model.sizes == [2], "the others wait until it is warm"
        model.go.set()
        assert all(call.result().sum() == 64 for call in calls)
    assert model.sizes == [2] * 8


def test_the_number_of_lanes_on_the_cpu_is_measured():
    lanes = surefoot.Lanes(network())
    assert lanes.count == 0
    lanes(torch.ones(2, 16))
    assert lanes.count >= 1 and "measured calls by lanes: 1: " in lanes.reason


def test_a_caller_that_finds_no_lane_in_time_is_told():
    model = Gated()
    lanes = surefoot.Lanes(model, lanes=1, timeout=0.05)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lanes, torch.ones(2))
        assert model.entered.wait(120)
        with pytest.raises(TimeoutError, match="all 1 are in use"):
            lanes(torch.ones(3))
        model.go.set()
        assert first.result().sum() == 4


def test_lanes_split_what_does_not_fit_and_pass_on_the_callers_own_mistakes():
    class Tight(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            if len(x) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return self.inner(x)

    model, foot = Tight(), surefoot.Footing(device="cpu")
    foot.place(model)
    lanes = surefoot.Lanes(model, lanes=2, footing=foot)
    x = torch.randn(8, 16)
    assert_golden(model.inner, [x], [lanes(x)])
    assert foot.last.parts == 4
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lanes(torch.ones(2, 3))
    with pytest.raises(torch.OutOfMemoryError):
        surefoot.Lanes(model, lanes=2)(x)


def test_the_batcher_stacks_calls_and_outputs_are_the_callers_own():
    model = Counted()
    given = inputs(90)
    with surefoot.Batcher(model, max_batch=16) as batcher, ThreadPoolExecutor(12) as pool:
        found = list(pool.map(batcher, given))
    assert_golden(model.inner, given, found)
    assert batcher.calls == 90 and max(model.sizes) <= 16 and model.most == 1


def test_what_gathers_while_the_model_runs_is_stacked():
    model = Gated()
    with surefoot.Batcher(model, max_batch=16) as batcher:
        first = batcher.submit(torch.zeros(1, 2))
        assert model.entered.wait(120)
        others = [batcher.submit(torch.full((1, 2), float(at))) for at in range(20)]
        model.go.set()
        assert first.result().tolist() == [[1.0, 1.0]]
        assert [call.result()[0, 0].item() for call in others] == [at + 1.0 for at in range(20)]
    assert model.sizes == [1, 16, 4] and batcher.batches == 3


def test_requests_of_another_form_are_not_stacked_with_each_other():
    def scaled(x, factor=1.0):
        assert isinstance(factor, float)
        return {"y": x * factor, "rows": len(x)}

    with surefoot.Batcher(scaled) as batcher, ThreadPoolExecutor(8) as pool:
        calls = [(torch.full((1, 2 + at % 2), float(at)), 1.0 + at % 2) for at in range(24)]
        found = list(pool.map(lambda call: batcher(call[0], factor=call[1]), calls))
    for (x, factor), result in zip(calls, found):
        assert torch.equal(result["y"], x * factor)


def test_one_callers_mistake_does_not_reach_the_others():
    class Fussy(nn.Module):
        def forward(self, x):
            time.sleep(0.01)
            if (x == 13).any():
                raise ValueError("thirteen")
            return x + 1

    with surefoot.Batcher(Fussy()) as batcher, ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(batcher, torch.full((1, 2), float(at))) for at in range(32)]
        for at, future in enumerate(futures):
            if at == 13:
                assert isinstance(future.exception(), ValueError)
            else:
                assert torch.equal(future.result(), torch.full((1, 2), at + 1.0))


def test_a_batcher_with_a_footing_splits_what_does_not_fit():
    def tight(x):
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return x * 2

    with surefoot.Batcher(tight, footing=surefoot.Footing(device="cpu")) as batcher:
        assert torch.equal(batcher(torch.arange(8)), torch.arange(8) * 2)


def test_a_closed_batcher_and_calls_without_a_batch_are_refused():
    batcher = surefoot.Batcher(network())
    with pytest.raises(ValueError, match="no batch to stack"):
        batcher(torch.tensor(1.0))
    batcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        batcher(torch.ones(1, 16))
    with pytest.raises(TypeError):
        surefoot.Lanes(lambda x: x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_lanes_are_streams_on_cuda_and_outputs_are_the_callers_own():
    model = network().cuda()
    given = [x.cuda() for x in inputs(200)]
    for lanes in (surefoot.Lanes(model, lanes=8), surefoot.Lanes(model)):
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lanes, given))
        assert_golden(model, given, found)
    assert "measured calls by lanes: 1: " in lanes.reason
    with surefoot.Batcher(model) as batcher, ThreadPoolExecutor(16) as pool:
        found = list(pool.map(batcher, given))
    assert_golden(model, given, found)
