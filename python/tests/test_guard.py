"""Guarded functions: results are those of the unguarded call, whatever had to be done for them."""

import gc
import weakref

import pytest
import torch

import surefoot


def footing(drill=None, **options):
    return surefoot.Footing(device="cpu", drill=drill, **options)


def too_large(limit):
    """Work that runs out of memory for more than `limit` samples, as a device would."""

    def work(x, scale=1.0):
        if len(x) > limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {len(x)} GiB.")
        return {"twice": x * 2 * scale, "first": x[:, 0]}

    return work


def test_a_batch_that_does_not_fit_is_split_and_the_result_is_the_same():
    foot = footing()
    x = torch.randn(10, 3)
    result = foot.guard(too_large(3), split=0)(x, scale=0.5)
    assert torch.equal(result["twice"], x) and torch.equal(result["first"], x[:, 0])
    assert foot.last.parts == 4 and foot.last.rungs == ["reclaim", "split", "split"]
    assert all("out_of_memory" in fault for fault in foot.last.faults)


def test_what_fits_is_remembered():
    foot = footing()
    work = foot.guard(too_large(3), split=0)
    work(torch.randn(10, 3))
    work(torch.randn(10, 3))
    assert foot.last.attempts == 1 and foot.last.parts == 4


def test_every_point_of_a_drill_is_survived():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
    x = torch.randn(8, 3)
    for drill in ["at=before", "at=during", "at=after", "at=between-parts", "count=2", "at=after,count=3"]:
        foot = footing(f"out_of_memory:{drill};out_of_memory:count=2" if "between" in drill else f"out_of_memory:{drill}")
        guarded = foot.guard(model.eval(), split=0, name="predict")
        assert torch.allclose(guarded(x), model(x)), drill
        assert foot.last.faults, drill


def test_dropout_draws_the_same_numbers_in_each_attempt():
    dropout = torch.nn.Dropout(0.5)
    x = torch.ones(64, 8)
    torch.manual_seed(3)
    expected = dropout(x)
    torch.manual_seed(3)
    foot = footing("out_of_memory:at=after")
    assert torch.equal(foot.guard(dropout, name="dropout")(x), expected)
    assert foot.last.rungs == ["reclaim"]


def test_memory_of_a_failed_attempt_is_free_when_it_is_tried_again():
    sizes, alive = [], weakref.WeakSet()

    class Big:
        pass

    def work(x):
        gc.collect()
        sizes.append(len(alive))
        big = Big()
        alive.add(big)
        if len(sizes) < 3:
            raise RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")
        return x

    footing().guard(work, split=0)(torch.ones(4))
    # The third attempt is in two parts, so it calls twice; nothing of the failed ones is left.
    assert sizes[:3] == [0, 0, 0]


def test_a_shape_mistake_is_raised_unchanged_and_at_once():
    calls = []

    def work(x):
        calls.append(1)
        return x @ torch.ones(7, 2)

    foot = footing()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        foot.guard(work, split=0)(torch.ones(4, 3))
    assert type(caught.value) is RuntimeError and len(calls) == 1
    assert any(frame.name == "work" for frame in caught.traceback), "the user's own line is in the traceback"


def test_ordinary_exceptions_and_interrupts_pass_through():
    for error in (KeyError("x"), KeyboardInterrupt(), ZeroDivisionError()):

        def work(error=error):
            raise error

        with pytest.raises(type(error)):
            footing().run(work)


def test_a_fault_without_a_way_out_says_what_was_tried():
    foot = footing(forbid=["next_device"])
    with pytest.raises(surefoot.Fault, match="after 3 tries: reclaim, split into 2") as caught:
        foot.guard(too_large(0), split=0)(torch.ones(2, 3))
    assert caught.value.kind == "out_of_memory" and len(caught.value.earlier) == 2
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize("rung", ["reclaim", "split"])
def test_each_rung_can_be_forbidden(rung):
    foot = footing("out_of_memory:count=2", forbid=[rung])
    try:
        foot.guard(lambda x: x, split=0)(torch.ones(4))
        assert rung not in foot.last.rungs
    except surefoot.Fault:
        assert rung == "split"


def test_failing_at_once_is_possible():
    with pytest.raises(surefoot.Fault, match="out_of_memory"):
        footing("out_of_memory", on_fault="fail").run(lambda: 1)


def test_lower_precision_has_to_be_allowed():
    linear = torch.nn.Linear(8, 8)
    foot = footing("out_of_memory:count=2", allow=["precision"])
    result = foot.guard(linear, name="linear")(torch.ones(2, 8))
    assert foot.last.rungs == ["reclaim", "precision"] and result.dtype == torch.bfloat16
    with pytest.raises(surefoot.Fault):
        footing("out_of_memory:count=2").guard(linear, name="linear")(torch.ones(2, 8))


def test_the_next_device_is_used_and_placed_models_move_along():
    # To PyTorch both are the CPU; to the ladder they are two devices.
    foot = surefoot.Footing(device="cpu,cpu:1", drill="device_lost:device=cpu")
    model = foot.place(torch.nn.Linear(2, 2))
    assert foot.guard(model, split=0, name="model")(torch.ones(3, 2)).shape == (3, 2)
    assert foot.last.rungs == ["next_device"] and foot.last.device == "cpu:1"
    assert foot.health == {"cpu": "lost", "cpu:1": "healthy"}


def test_work_goes_back_to_the_first_device_when_it_is_well_again():
    foot = surefoot.Footing(device="cpu,cpu:1", drill="out_of_memory:device=cpu,count=2")
    work = foot.guard(lambda: 1, name="work")
    work()
    assert foot.last.device == "cpu:1"
    work()
    assert foot.last.device == "cpu" and foot.last.attempts == 1


def test_combine_joins_what_cannot_be_joined():
    def mean(x):
        if len(x) > 3:
            raise MemoryError
        return x.mean()

    def weighted(results, sizes):
        return sum(r * n for r, n in zip(results, sizes)) / sum(sizes)

    x = torch.arange(10.0)
    assert footing().guard(mean, split=0, combine=weighted)(x) == pytest.approx(4.5)
    with pytest.raises(TypeError, match="combine="):
        footing().guard(mean, split=0)(x)


def test_arguments_are_split_by_name():
    def attend(x, mask, scale):
        assert mask.shape == (4, 4)
        if len(x) > 2:
            raise MemoryError
        return x @ mask * scale

    x, mask = torch.randn(4, 4), torch.randn(4, 4)
    result = footing().guard(attend, split={"x": 0, "mask": None})(x, mask, scale=2)
    assert torch.allclose(result, x @ mask * 2)
    with pytest.raises(ValueError, match="names no argument.*: y"):
        footing().guard(attend, split={"y": 0})(x, mask, 1)


def test_calls_without_a_batch_say_what_to_do():
    with pytest.raises(ValueError, match="no batch to split"):
        footing().guard(lambda x: x, split=0)("text")
    with pytest.raises(ValueError, match="split=0"):
        surefoot.guard(combine=lambda r, s: r)


def test_methods_and_the_default_footing():
    class Model:
        @surefoot.guard(split=0)
        def predict(self, x):
            """Predicts."""
            return x + 1

    assert Model().predict(torch.zeros(2)).tolist() == [1, 1]
    assert Model.predict.__doc__ == "Predicts." and Model.predict.__name__ == "predict"


def test_gradients_flow_through_a_split_call():
    x = torch.randn(6, 3, requires_grad=True)
    result = footing().guard(too_large(2), split=0)(x)
    result["twice"].sum().backward()
    assert torch.equal(x.grad, torch.full((6, 3), 2.0))
