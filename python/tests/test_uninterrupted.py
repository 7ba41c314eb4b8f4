"""When the copy that undoes an update is made, and what happens to an update that stops half-way without one."""

import sys

import pytest
import torch
import torch.nn.functional as F

import surefoot
from surefoot import _snapshot, _step, _uninterrupted


class OwnAdam(torch.optim.Adam):
    """An optimizer of the user's own: nothing is known of what it does."""


class StopsHalfway(torch.optim.Adam):
    """Runs out of memory after half of its parameters at the second update, once."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls != 2:
            return super().step(closure)
        parameters = self.param_groups[0]["params"]
        grads = [p.grad for p in parameters]
        parameters[-1].grad = None
        super().step()
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def saves_in_three_steps(monkeypatch, make, model=None, inputs=torch.ones(3, 4)):
    """How often three steps copied the optimizer's state."""
    saves = []
    save = _snapshot.OptimizerState.save
    monkeypatch.setattr(_snapshot.OptimizerState, "save", lambda self, optimizer: (saves.append(1), save(self, optimizer)))
    model = model or torch.nn.Linear(4, 2)
    optimizer = make(model)
    foot = surefoot.Footing(device="cpu")
    for _ in range(3):
        foot.step(model, optimizer, (inputs,), lambda m, x: m(x).square().mean())
    return len(saves)


@pytest.fixture
def allocations_succeed(monkeypatch):
    """As on a Linux system without limits, whatever this one is like."""
    monkeypatch.setattr(_uninterrupted, "_allocations_fail", lambda: False)


@pytest.mark.usefixtures("allocations_succeed")
def test_only_the_first_update_of_pytorchs_own_optimizer_is_copied_on_the_cpu(monkeypatch):
    assert saves_in_three_steps(monkeypatch, lambda m: torch.optim.AdamW(m.parameters())) == 1


@pytest.mark.usefixtures("allocations_succeed")
def test_a_learning_rate_scheduler_changes_nothing_of_that(monkeypatch):
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return optimizer

    assert saves_in_three_steps(monkeypatch, make) == 1


@pytest.mark.usefixtures("allocations_succeed")
def test_an_optimizer_of_the_users_own_is_copied_each_time(monkeypatch):
    assert saves_in_three_steps(monkeypatch, lambda m: OwnAdam(m.parameters())) == 3


@pytest.mark.usefixtures("allocations_succeed")
def test_hooks_of_others_are_not_trusted(monkeypatch):
    def make(model):
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    assert saves_in_three_steps(monkeypatch, make) == 3


@pytest.mark.usefixtures("allocations_succeed")
def test_sparse_gradients_are_not_trusted(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True))
    assert saves_in_three_steps(monkeypatch, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), model, torch.ones(3, dtype=torch.int64)) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_a_limit_of_the_address_space_means_that_allocations_can_fail():
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        # Far above what any process maps, and no higher than this one may set.
        most = 1 << 46 if before[1] == resource.RLIM_INFINITY else before[1]
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        assert _uninterrupted._allocations_fail()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def halfway_problem():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return model, StopsHalfway(model.parameters(), lr=0.1), (torch.randn(6, 4), torch.randint(0, 2, (6,)))


def test_a_half_done_update_is_undone_and_repeated():
    model, optimizer, batch = halfway_problem()
    expected, plain, _ = halfway_problem()
    plain.calls = 10
    foot = surefoot.Footing(device="cpu")
    for _ in range(3):
        foot.step(model, optimizer, batch, lambda m, x, y: F.cross_entropy(m(x), y))
        F.cross_entropy(expected(batch[0]), batch[1]).backward()
        plain.step()
        plain.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters()))


def test_a_half_done_update_without_a_copy_ends_with_a_plain_word_and_is_not_repeated(monkeypatch):
    monkeypatch.setattr(_step.Trainer, "_protection", lambda self, optimizer, known: None)
    model, optimizer, batch = halfway_problem()
    foot = surefoot.Footing(device="cpu")
    foot.step(model, optimizer, batch, lambda m, x, y: F.cross_entropy(m(x), y))
    with pytest.raises(surefoot.Fault, match="stopped half-way and can't be undone"):
        foot.step(model, optimizer, batch, lambda m, x, y: F.cross_entropy(m(x), y))
    assert optimizer.calls == 2


def test_a_buffer_that_a_failed_attempt_replaced_has_its_old_numbers_again():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + len(x)  # another tensor each time
            return self.inner(x)

    model = Counting()
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:op=step,step=2,at=during,nth=2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        foot.step(model, optimizer, (torch.ones(10, 4),), lambda m, x: m(x).square().mean())
    assert model.seen.item() == 40
