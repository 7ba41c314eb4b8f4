"""`compare` says SAME, DIFFERENT or UNDECIDED, with bounded error rates."""

import copy

import pytest
import torch
from torch import nn

import surefoot


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8))


def batches(count=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(16, 16, generator=generator) for _ in range(count)]


def test_a_copy_is_the_same_and_the_text_begins_with_the_verdict():
    model = network()
    found = surefoot.compare(model, copy.deepcopy(model), batches())
    assert str(found).startswith("SAME: 5 modules agree") and found.same
    assert found.samples == 128 and found.samples_used < 64 and found.allowed == "arithmetic"
    assert [site.name for site in found.sites] == ["0", "1", "2", "3", "output"]


def test_another_order_of_summation_is_noise():
    class Reordered(nn.Linear):
        def forward(self, x):
            half = self.in_features // 2
            return x[:, half:] @ self.weight[:, half:].T + x[:, :half] @ self.weight[:, :half].T + self.bias

    model, other = network(), network()
    other[2].__class__ = Reordered
    other[4].__class__ = Reordered
    found = surefoot.compare(model, other, batches())
    assert found.verdict == "SAME", str(found)


def test_one_step_of_fine_tuning_is_found_where_it_was_made():
    model, other = network(), network()
    optimizer = torch.optim.SGD(other[2].parameters(), lr=1e-3)
    other(batches()[0]).square().mean().backward()
    optimizer.step()
    found = surefoot.compare(model, other, batches())
    assert str(found).startswith("DIFFERENT: ") and found.first == "2"
    assert found.samples_used < 64 and found.curve[-1][0] > 2.0


def test_weights_in_other_dtypes_are_the_same_within_rounding_and_another_model_is_not():
    model, half = network(), network().to(torch.bfloat16)

    def forward(m, x):
        return m(x.to(next(m.parameters()).dtype)).float()

    found = surefoot.compare(model, half, batches(), forward=forward)
    assert found.allowed == "rounding" and found.verdict == "SAME", str(found)
    assert "float32 on cpu" in str(found) and "bfloat16 on cpu" in str(found)
    torch.manual_seed(5)
    nn.init.normal_(half[4].weight)
    assert surefoot.compare(model, half, batches(), forward=forward).verdict == "DIFFERENT"


def test_numbers_that_are_not_finite_are_different():
    model, other = network(), network()
    with torch.no_grad():
        other[2].weight[0, 0] = float("nan")
    found = surefoot.compare(model, other, batches())
    assert found.verdict == "DIFFERENT" and found.first == "2" and "not finite, first at 2" in str(found)
    with pytest.raises(ValueError, match="can't be the reference"):
        surefoot.compare(other, model, batches())


def test_few_samples_decide_nothing():
    model = network()
    found = surefoot.compare(model, copy.deepcopy(model), [torch.randn(2, 16)])
    assert str(found).startswith("UNDECIDED: 2 samples") and not found.same


def test_convolutions_and_transformers_with_masks_and_dropout():
    torch.manual_seed(0)
    vision = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 36, 4))
    images = [torch.randn(16, 3, 8, 8) for _ in range(4)]
    assert surefoot.compare(vision, copy.deepcopy(vision), images).same
    language = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.3, batch_first=True)
    texts = [torch.randn(16, 6, 32) for _ in range(4)]
    other = copy.deepcopy(language)
    assert surefoot.compare(language, other, texts).same and language.training
    with torch.no_grad():
        other.linear1.weight *= 1.001
    assert surefoot.compare(language, other, texts).first == "linear1"


def test_false_verdicts_are_rare():
    """Forty pairs that differ by noise only, at the size that was measured: no false DIFFERENT is expected in forty."""
    wrong = 0
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
        wider = copy.deepcopy(model).double()

        def forward(m, x):
            # The same weights, summed in double precision: another rounding of every sum.
            return m(x.to(next(m.parameters()).dtype)).float()

        found = surefoot.compare(model, wider, batches(4, seed), forward=forward)
        wrong += found.verdict == "DIFFERENT"
    assert wrong == 0


def test_models_and_inputs_that_can_not_be_compared_are_refused():
    model = network()
    with pytest.raises(TypeError, match=r"write \[batch\]"):
        surefoot.compare(model, model, torch.ones(4, 16))
    with pytest.raises(ValueError, match="no batches"):
        surefoot.compare(model, model, [])
    with pytest.raises(ValueError, match="no module of the same name and shape"):
        surefoot.compare(nn.Linear(4, 2), nn.Linear(4, 3), [torch.ones(4, 4)])
    with pytest.raises(ValueError, match="alpha and beta"):
        surefoot.compare(model, model, batches(), alpha=0.0)
    with pytest.raises(TypeError, match="torch.nn.Module"):
        surefoot.compare(model, lambda x: x, batches())


def test_pages_hold_the_verdict_and_every_module(tmp_path):
    model, other = network(), network()
    with torch.no_grad():
        other[4].weight *= 1.01
    surefoot.compare(model, other, batches()).html(tmp_path / "compared.html")
    page = (tmp_path / "compared.html").read_text()
    assert page.startswith("<!doctype html>") and '"DIFFERENT"' in page and "another order" not in page.split("<script")[0]
    surefoot.audit(model, batches()[0]).html(tmp_path / "audited.html")
    audited = (tmp_path / "audited.html").read_text()
    assert '"SAME"' in audited and "Audit on cpu" in audited
