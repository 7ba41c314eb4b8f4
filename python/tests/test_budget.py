"""A memory budget on the CPU is kept by measuring and refusing; results are those of the whole batch."""

import subprocess
import sys
import textwrap

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is read from /proc")

# A process of its own: its peak is not the other tests'.
SCRIPT = textwrap.dedent(
    """
    import json, sys, torch, surefoot
    from surefoot import _native
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1))
    x = torch.randn(8192, 64)
    loss_fn = lambda m, x: (m(x) ** 2).mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    # What PyTorch loads at the first step is not the batch's.
    surefoot.Footing(device="cpu").step(model, optimizer, (x[:8],), loss_fn)
    limit = _native.resident() + int(sys.argv[1]) * (1 << 20) if sys.argv[1] != "0" else None
    foot = surefoot.Footing(device="cpu", memory=limit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, parts, peaks = [], [], []
    for _ in range(3):
        _native.forget_peak_resident()
        losses.append(foot.step(model, optimizer, (x,), loss_fn).item())
        parts.append(foot.last.parts)
        peaks.append(_native.peak_resident())
    print(json.dumps({"losses": losses, "parts": parts, "peak": max(peaks), "limit": limit}))
    """
)


def run(mib):
    import json

    done = subprocess.run([sys.executable, "-c", SCRIPT, str(mib)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@linux_only
def test_a_batch_that_would_go_over_the_budget_is_run_in_parts():
    free, bounded = run(0), run(160)
    assert free["parts"] == [1, 1, 1]
    # The whole batch takes 8192 x 4096 floats a layer: 128 MiB, several times.
    assert bounded["parts"][-1] >= 2
    assert bounded["peak"] <= bounded["limit"], "the budget was not kept"
    assert bounded["losses"] == pytest.approx(free["losses"], rel=1e-4)


@linux_only
def test_a_budget_that_nothing_fits_in_is_a_fault_that_says_so():
    import torch

    import surefoot

    foot = surefoot.Footing(device="cpu", memory="1MiB", forbid=["next_device"])
    model = torch.nn.Linear(512, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(surefoot.Fault, match="budget is 1") as caught:
        foot.step(model, optimizer, (torch.randn(64, 512),), lambda m, x: m(x).sum())
    assert caught.value.kind == "out_of_memory"
    assert all(parameter.grad is None for parameter in model.parameters())
