"""`audit` names the module that goes wrong, and why."""

import pytest
import torch
from torch import nn

import surefoot

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


class Small(nn.Module):
    """A network with a transposed tensor between its modules, as attention has them."""

    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 24), middle, nn.Linear(24, 8)

    def forward(self, x):
        y = self.first(x)
        y = self.middle(y.transpose(0, 1)).transpose(0, 1)
        return self.last(torch.relu(y))


class WrongInSinglePrecision(nn.Module):
    """Right in float64, which the reference is in; in float32 one number of each row is off, as a bad kernel's is."""

    def forward(self, x):
        y = x * 1.5
        if x.dtype == torch.float32:
            y = y.clone()
            y[..., 0] *= 1.02
        return y


class IgnoresStrides(nn.Module):
    """Reads its input as if it were contiguous, as operations on MPS did."""

    def forward(self, x):
        strides = torch.empty(x.shape, device="meta").stride()
        return torch.as_strided(x, x.shape, strides) * 1.5


class LateCopy(nn.Module):
    """Gives a tensor out that is filled later, as a copy that nobody waits for is; in float64 it waits."""

    def forward(self, x):
        out = torch.zeros_like(x)
        self.fill = lambda: out.numpy().__setitem__(slice(None), (x * 1.5).numpy())
        if x.dtype == torch.float64:
            self.fill()
        return out


class CopiesLate(nn.Module):
    """The copy is done when the pass ends."""

    def __init__(self):
        super().__init__()
        self.first, self.copy, self.last = nn.Linear(16, 24), LateCopy(), nn.Linear(24, 8)

    def forward(self, x):
        y = self.last(self.copy(self.first(x)))
        self.copy.fill()
        return y


def test_models_that_are_right_agree_in_every_precision():
    torch.manual_seed(0)
    models = {
        "linear": (Small(nn.Identity()), torch.randn(32, 16)),
        "convolutions": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3)), torch.randn(4, 3, 12, 12)),
        "transformer": (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.randn(4, 10, 32)),
        "recurrent": (nn.GRU(8, 16, batch_first=True), torch.randn(4, 12, 8)),
    }
    for name, (model, batch) in models.items():
        for precision in (None, "bf16"):
            found = surefoot.audit(model, batch, precision=precision)
            assert found.ok, f"{name} in {precision}:\n{found}"


def test_a_module_that_computes_wrongly_is_named():
    found = surefoot.audit(Small(WrongInSinglePrecision()), torch.randn(32, 16))
    assert str(found).startswith("DIFFERENT: middle is the first of 4 modules that diverges on cpu in fp32")
    assert (found.first.name, found.cause, found.first.dtype) == ("middle", "wrong", "float32")
    assert found.first.inputs == [(24, 32)] and found.first.shape == (24, 32)
    assert 1e-4 < found.first.deviation < 1e-1 and found.first.tolerance < 1e-5
    assert "how far" in str(found) and found.advice in str(found)


def test_a_module_that_ignores_strides_is_told_from_one_that_is_wrong():
    found = surefoot.audit(Small(IgnoresStrides()), torch.randn(32, 16))
    assert (found.first.name, found.cause) == ("middle", "non_contiguous")
    assert ".contiguous()" in str(found)


def test_a_copy_that_nobody_waited_for_is_found():
    found = surefoot.audit(CopiesLate(), torch.randn(32, 16))
    assert (found.first.name, found.cause) == ("copy", "unsynchronised")
    assert "non_blocking" in str(found)


def test_an_overflow_in_half_precision_is_found():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4))
    with torch.no_grad():
        model[1].weight.fill_(3e4)
    found = surefoot.audit(model, torch.randn(8, 16) * 10, precision="fp16")
    assert (found.first.name, found.cause, found.first.dtype) == ("1", "overflow", "float16")
    assert "too large for float16" in str(found)
    assert surefoot.audit(model, torch.randn(8, 16) * 10).ok, "in float32 nothing is wrong"


def test_what_is_wrong_between_two_modules_is_not_blamed_on_the_second():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x)
            return self.last(y if y.dtype == torch.float64 else y + 0.01)

    found = surefoot.audit(Between(), torch.randn(16, 8))
    assert (found.first.name, found.cause) == ("last", "before")


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    surefoot.audit(model, torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (model.training, model[1].training, model[2].training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_batches_as_loaders_and_tokenizers_give_them():
    model = nn.Linear(8, 2)
    x, labels = torch.randn(8, 8), torch.zeros(8)
    assert surefoot.audit(model, (x, labels)).ok, "labels are not for the model"
    assert surefoot.audit(model, {"input": x}).ok
    assert surefoot.audit(model, (x, labels), forward=lambda m, x, y: m(x) - y[:, None]).ok


def test_bad_input_says_what_to_do():
    with pytest.raises(TypeError, match="torch.nn.Module"):
        surefoot.audit(lambda x: x, torch.ones(2))
    with pytest.raises(ValueError, match="'fp32', 'bf16' or 'fp16'"):
        surefoot.audit(nn.Linear(2, 2), torch.ones(1, 2), precision="int8")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        surefoot.audit(nn.Linear(2, 2), torch.ones(1, 3))


@CUDA
def test_a_layer_that_is_wrong_on_the_gpu_alone_is_named():
    class WrongOnCuda(nn.Module):
        def forward(self, x):
            return x * 1.5 if not x.is_cuda else x * 1.51

    assert surefoot.audit(Small(nn.Identity()), torch.randn(32, 16), device="cuda").ok
    found = surefoot.audit(Small(WrongOnCuda()), torch.randn(32, 16), device="cuda")
    assert (found.first.name, found.cause) == ("middle", "wrong")


@CUDA
def test_a_copy_to_the_host_that_nobody_waited_for_is_found():
    class ReadsTooEarly(nn.Module):
        def forward(self, x):
            if not x.is_cuda:
                return x * 1.5
            torch.cuda._sleep(200_000_000)
            host = torch.zeros(x.shape, pin_memory=True)
            host.copy_(x * 1.5, non_blocking=True)
            return host

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.copy = nn.Linear(16, 24), ReadsTooEarly()

        def forward(self, x):
            return self.copy(self.first(x))

    found = surefoot.audit(Model(), torch.randn(32, 16), device="cuda")
    assert (found.first.name, found.cause) == ("copy", "unsynchronised")
