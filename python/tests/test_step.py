"""Training steps: the same gradients, losses and weights as bare PyTorch, whatever failed on the way."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

import surefoot


class Net(torch.nn.Module):
    """Repeated blocks with dropout, as transformers have them."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        block = lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Dropout(dropout))
        self.blocks = torch.nn.ModuleList([block(), block(), block()])
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def loss_mean(m, x, y):
    return F.cross_entropy(m(x), y)


def loss_sum(m, x, y):
    return F.cross_entropy(m(x), y, reduction="sum")


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


def batches(count=4, samples=10):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(samples, 6, generator=generator), torch.randint(0, 4, (samples,), generator=generator))
        for _ in range(count)
    ]


def bare(model, optimizer, data, loss_fn=loss_mean):
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_fn(model, *batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def twins(make_optimizer, dropout=0.0):
    torch.manual_seed(1)
    model = Net(dropout)
    other = copy.deepcopy(model)
    return model, make_optimizer(model.parameters()), other, make_optimizer(other.parameters())


def assert_equal(a, b):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values()):
        assert torch.equal(x, y), name


def assert_close(a, b, tolerance=1e-5):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values()):
        assert torch.allclose(x, y, rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_faults_weights_and_losses_are_bit_for_bit_those_of_bare_pytorch(name):
    model, optimizer, twin, twin_optimizer = twins(OPTIMIZERS[name], dropout=0.2)
    torch.manual_seed(9)
    expected = bare(twin, twin_optimizer, batches())
    torch.manual_seed(9)
    foot = surefoot.Footing(device="cpu")
    losses = [foot.step(model, optimizer, batch, loss_mean).item() for batch in batches()]
    assert losses == expected
    assert_equal(model, twin)
    assert foot.steps == 4


@pytest.mark.parametrize("at", ["before", "during,nth=1", "during,nth=2", "after"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_reclaimed_attempt_changes_nothing(at, name):
    """The fault strikes before, in the forward pass, in the backward pass and after; the second attempt is whole."""
    model, optimizer, twin, twin_optimizer = twins(OPTIMIZERS[name], dropout=0.2)
    torch.manual_seed(9)
    bare(twin, twin_optimizer, batches())
    torch.manual_seed(9)
    foot = surefoot.Footing(device="cpu", drill=f"out_of_memory:op=step,step=1,at={at}")
    rungs = []
    for batch in batches():
        foot.step(model, optimizer, batch, loss_mean)
        rungs += foot.last.rungs
    assert rungs == ["reclaim"]
    assert_equal(model, twin)


@pytest.mark.parametrize("samples", [8, 10, 7])
@pytest.mark.parametrize("reduction, loss_fn", [("mean", loss_mean), ("sum", loss_sum)])
def test_micro_batches_give_the_whole_batchs_gradients(samples, reduction, loss_fn):
    make = lambda p: torch.optim.SGD(p, lr=0.01)
    model, optimizer, twin, twin_optimizer = twins(make)
    data = batches(samples=samples)
    expected = bare(twin, twin_optimizer, data, loss_fn)
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,count=3")
    losses = [foot.step(model, optimizer, batch, loss_fn, reduction=reduction).item() for batch in data]
    assert foot.last.parts == 4
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_close(model, twin)


def test_one_sample_can_not_be_split_so_activations_are_recomputed():
    model, optimizer, twin, twin_optimizer = twins(OPTIMIZERS["adam"], dropout=0.3)
    data = batches(1, samples=1)
    torch.manual_seed(9)
    bare(twin, twin_optimizer, data)
    torch.manual_seed(9)
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,count=2")
    foot.step(model, optimizer, data[0], loss_mean)
    assert foot.last.rungs == ["reclaim", "checkpoint"]
    assert_equal(model, twin)
    assert all("forward" not in module.__dict__ for module in model.modules()), "the model is as it was"


def test_means_over_other_things_than_samples_are_weighted_by_them():
    def loss_fn(m, x, y):
        return F.cross_entropy(m(x), y, ignore_index=-100)

    make = lambda p: torch.optim.SGD(p, lr=0.1)
    model, optimizer, twin, twin_optimizer = twins(make)
    data = batches(2, samples=8)
    for _, y in data:
        y[:5] = -100  # three terms, all in the second half
        y[4] = 1
    expected = bare(twin, twin_optimizer, data, loss_fn)
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,count=2")
    terms = lambda x, y: (y != -100).sum()
    losses = [foot.step(model, optimizer, batch, loss_fn, weight=terms).item() for batch in data]
    assert foot.last.parts == 2
    # The first part has no term, so its own mean is NaN: it must not count.
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_close(model, twin)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("step", [0, 2])
def test_an_optimizer_that_stops_half_way_is_restored_bit_for_bit(name, step):
    """Half of the parameters are updated, then the fault strikes; in the first update moments are new as well."""
    model, optimizer, twin, twin_optimizer = twins(OPTIMIZERS[name])
    bare(twin, twin_optimizer, batches())
    foot = surefoot.Footing(device="cpu", drill=f"out_of_memory:op=optimizer,at=during,step={step}")
    faults = []
    for batch in batches():
        foot.step(model, optimizer, batch, loss_mean)
        faults += foot.last.faults
    assert len(faults) == 1
    assert_equal(model, twin)
    for (_, a), (_, b) in zip(optimizer.state.items(), twin_optimizer.state.items()):
        assert a.keys() == b.keys()
        assert all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in a), "moments and step counts"


def test_an_update_that_is_given_up_leaves_everything_as_it_was():
    model, optimizer, *_ = twins(OPTIMIZERS["adam"])
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=optimizer,at=during,step=1,count=99", forbid=["next_device"])
    data = batches()
    foot.step(model, optimizer, data[0], loss_mean)
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(surefoot.Fault, match="out_of_memory in optimizer"):
        foot.step(model, optimizer, data[1], loss_mean)
    assert_equal(model, before)
    for key, entry in optimizer.state_dict()["state"].items():
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(state["state"][key][k])) for k, v in entry.items())


def test_an_optimizer_short_of_memory_goes_tensor_by_tensor():
    seen = []

    class Watched(torch.optim.Adam):
        def step(self, closure=None):
            seen.append(self.param_groups[0]["foreach"])
            return super().step(closure)

    model = Net()
    optimizer = Watched(model.parameters(), foreach=True)
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=optimizer,count=2")
    foot.step(model, optimizer, batches()[0], loss_mean)
    assert foot.last.rungs == ["reclaim", "split"] and seen == [False]
    assert optimizer.param_groups[0]["foreach"] is True


def test_a_failed_step_leaves_no_gradients_and_keeps_the_ones_before():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_mean(model, *batches()[0]).backward()
    before = [p.grad.clone() for p in model.parameters()]
    foot = surefoot.Footing(device="cpu", on_fault="fail", drill="out_of_memory:op=step,at=during,nth=2")
    with pytest.raises(surefoot.Fault):
        foot.step(model, optimizer, batches()[1], loss_mean)
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before))


def test_gradients_from_before_are_added_to():
    model, optimizer, twin, twin_optimizer = twins(lambda p: torch.optim.SGD(p, lr=0.1))
    first, second = batches(2)
    (loss_mean(twin, *first) + loss_mean(twin, *second)).backward()
    twin_optimizer.step()
    loss_mean(model, *first).backward()
    surefoot.Footing(device="cpu").step(model, optimizer, second, loss_mean)
    assert_close(model, twin)


def test_accumulation_updates_at_every_nth_call():
    model, optimizer, twin, twin_optimizer = twins(lambda p: torch.optim.SGD(p, lr=0.1))
    data = batches(4)
    for first, second in zip(data[::2], data[1::2]):
        twin_optimizer.zero_grad()
        ((loss_mean(twin, *first) + loss_mean(twin, *second)) / 2).backward()
        twin_optimizer.step()
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,step=1,at=during,nth=2")
    expected = loss_mean(model, *data[0]).item()
    losses = [foot.step(model, optimizer, batch, loss_mean, accumulate=2).item() for batch in data]
    assert losses[0] == pytest.approx(expected), "the loss that is told is the batch's own"
    assert foot.steps == 2
    assert_close(model, twin)


def test_clipping_is_pytorchs_and_is_done_once():
    model, optimizer, twin, twin_optimizer = twins(lambda p: torch.optim.SGD(p, lr=0.1))
    norms = []
    for batch in batches():
        twin_optimizer.zero_grad()
        loss_mean(twin, *batch).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05).item())
        twin_optimizer.step()
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=optimizer,at=during,step=1")
    for batch, norm in zip(batches(), norms):
        foot.step(model, optimizer, batch, loss_mean, clip_norm=0.05)
        assert foot.grad_norm.item() == pytest.approx(norm, rel=1e-5)
    assert_close(model, twin, 1e-6)


def test_a_grad_scaler_scales_skips_and_recovers():
    model, optimizer, twin, twin_optimizer = twins(OPTIMIZERS["adam"])
    scaler, twin_scaler = (torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) for _ in range(2))

    def loss_fn(m, x, y):
        loss = loss_mean(m, x, y)
        return loss * float("inf") if x[0, 0] > 100 else loss

    data = batches(5)
    data[2][0][0, 0] = 1000.0  # an overflow: this update is skipped and the scale halved
    for batch in data:
        twin_optimizer.zero_grad()
        twin_scaler.scale(loss_fn(twin, *batch)).backward()
        twin_scaler.unscale_(twin_optimizer)
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        twin_scaler.step(twin_optimizer)
        twin_scaler.update()
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,step=1,at=during,nth=2;out_of_memory:op=optimizer,step=3")
    for batch in data:
        foot.step(model, optimizer, batch, loss_fn, scaler=scaler, clip_norm=1.0)
    assert scaler.get_scale() == twin_scaler.get_scale()
    assert_close(model, twin)


def test_batch_statistics_of_failed_attempts_are_gone_and_splitting_is_said():
    def make():
        torch.manual_seed(2)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))

    model, twin = make(), make()
    optimizer, twin_optimizer = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    bare(twin, twin_optimizer, batches())
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,step=1,at=during,nth=2")
    for batch in batches():
        foot.step(model, optimizer, batch, loss_mean)
    assert_equal(model, twin)

    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,count=2")
    with pytest.warns(surefoot.SurefootWarning, match="batch norm") as caught:
        for batch in batches():
            foot.step(model, optimizer, batch, loss_mean)
    assert len(caught) == 1 and caught[0].filename == __file__, "once, at the user's own line"


def test_buffers_that_a_module_counts_in_are_restored():
    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += len(x)
            return super().forward(x)

    model = Counting()
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,step=2,at=during,nth=2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        foot.step(model, optimizer, batch, loss_mean)
    assert model.seen.item() == 40


def test_what_fits_is_learned_and_tried_larger_later():
    """Only 4 samples fit at first; after a while the device has room again."""
    room = {"samples": 4}

    def loss_fn(m, x, y):
        if len(x) > room["samples"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return loss_mean(m, x, y)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    foot = surefoot.Footing(device="cpu")
    batch = batches(1, samples=16)[0]
    foot.step(model, optimizer, batch, loss_fn)
    assert (foot.last.parts, foot.last.attempts) == (4, 4)
    foot.step(model, optimizer, batch, loss_fn)
    assert (foot.last.parts, foot.last.attempts) == (4, 1)
    room["samples"] = 16
    parts = []
    for _ in range(200):
        foot.step(model, optimizer, batch, loss_fn)
        parts.append(foot.last.parts)
    assert parts[0] == 4 and parts[-1] == 1


def test_dicts_and_objects_with_a_loss_work_as_well():
    class Result:
        def __init__(self, loss):
            self.loss = loss

    def loss_fn(m, batch):
        return Result(F.cross_entropy(m(batch["x"]), batch["y"]))

    model, optimizer, twin, twin_optimizer = twins(lambda p: torch.optim.SGD(p, lr=0.1))
    x, y = batches()[0]
    bare(twin, twin_optimizer, [(x, y)])
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,count=2")
    foot.step(model, optimizer, {"x": x, "y": y}, loss_fn)
    assert foot.last.parts == 2
    assert_close(model, twin)


def test_a_lost_device_is_left_and_training_goes_on():
    model, optimizer, twin, twin_optimizer = twins(OPTIMIZERS["adam"])
    bare(twin, twin_optimizer, batches())
    foot = surefoot.Footing(device="cpu,cpu:1", drill="device_lost:op=step,step=1,device=cpu")
    for batch in batches():
        foot.step(model, optimizer, batch, loss_mean)
    assert foot.health["cpu"] == "lost"
    assert_equal(model, twin)


def test_mistakes_of_the_caller_are_named():
    model, x, y = Net(), *batches()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    foot = surefoot.Footing(device="cpu")
    with pytest.raises(TypeError, match="torch.nn.Module"):
        foot.step(lambda x: x, optimizer, (x, y), loss_mean)
    with pytest.raises(TypeError, match="Optimizer"):
        foot.step(model, None, (x, y), loss_mean)
    with pytest.raises(ValueError, match="dimension to split"):
        foot.step(model, optimizer, (torch.tensor(1.0),), loss_mean)
    with pytest.raises(ValueError, match="empty"):
        foot.step(model, optimizer, (x[:0], y[:0]), loss_mean)
    with pytest.raises(TypeError, match="one number"):
        foot.step(model, optimizer, (x, y), lambda m, x, y: m(x))
    with pytest.raises(ValueError, match="reduction"):
        foot.step(model, optimizer, (x, y), loss_mean, reduction="none")
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        foot.step(model, optimizer, (x, y), lambda m, x, y: torch.zeros((), requires_grad=True))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        foot.step(model, optimizer, (x[:, :3], y), loss_mean)
    assert all(p.grad is None for p in model.parameters())


def test_checkpoints_resume_bit_for_bit(tmp_path):
    model, optimizer, twin, twin_optimizer = twins(OPTIMIZERS["adam"], dropout=0.2)
    path = tmp_path / "run.pt"
    torch.manual_seed(9)
    foot = surefoot.Footing(device="cpu", checkpoint=path)
    assert foot.resume(model, optimizer) == 0
    data = batches(6)
    for batch in data[:3]:
        foot.step(model, optimizer, batch, loss_mean)
    foot.save(model, optimizer)
    for batch in data[3:]:
        foot.step(model, optimizer, batch, loss_mean)
    again = surefoot.Footing(device="cpu", checkpoint=path)
    assert again.resume(twin, twin_optimizer) == 3
    for batch in data[3:]:
        again.step(twin, twin_optimizer, batch, loss_mean)
    assert again.steps == 6
    assert_equal(model, twin)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.pt"], "no temporary file is left"


def test_no_warning_without_a_reason():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        surefoot.Footing(device="cpu").step(model, optimizer, batches()[0], loss_mean)
