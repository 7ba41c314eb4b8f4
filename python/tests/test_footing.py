"""Choosing a device, placing values, the journal, and mistakes that are named."""

import json
import subprocess
import sys

import pytest
import torch

import surefoot


def test_auto_chooses_a_device_and_says_why():
    foot = surefoot.Footing()
    assert foot.device.type in ("cpu", "cuda", "mps", "xpu")
    assert foot.reason
    if foot.device.type == "cpu":
        assert "cuda is not available" in foot.reason


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "gpu"])
def test_an_unknown_device_says_what_there_is(device):
    with pytest.raises((ValueError, surefoot.Fault), match="cpu"):
        surefoot.Footing(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_a_device_that_is_not_there_is_a_fault_with_advice():
    with pytest.raises(surefoot.Fault, match="driver_or_init.*cuda") as caught:
        surefoot.Footing(device="cuda", forbid=["next_device"])
    assert any("auto" in line for line in caught.value.advice)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="on_fault"):
        surefoot.Footing(device="cpu", on_fault="retry")
    with pytest.raises(ValueError, match="'retry' is not a recovery step"):
        surefoot.Footing(device="cpu", forbid=["retry"])
    with pytest.raises(ValueError, match="is not a drill"):
        surefoot.Footing(device="cpu", drill="oom")
    with pytest.raises(ValueError, match="6 gigs"):
        surefoot.Footing(device="cpu", memory="6 gigs")
    with pytest.raises(OSError, match="could not be opened"):
        surefoot.Footing(device="cpu", journal="/nowhere/run.jsonl")


def test_place_keeps_structures_and_what_is_there_already():
    foot = surefoot.Footing(device="cpu")
    x = torch.ones(2)
    placed = foot.place({"x": x, "names": ["a"]})
    assert placed["x"] is x and placed["names"] == ["a"]
    model = torch.nn.Linear(2, 2)
    assert foot.place(model) is model


def test_batches_come_in_order():
    foot = surefoot.Footing(device="cpu")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(10.0)), batch_size=4)
    assert [batch[0].tolist() for batch in foot.batches(loader)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_journal_is_the_programs_own_format(tmp_path):
    path = tmp_path / "run.jsonl"
    foot = surefoot.Footing(device="cpu", journal=path, drill="out_of_memory:count=2")
    foot.guard(lambda x: x, split=0, name="predict")(torch.ones(4))
    foot.note("epoch", "the first one is done")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["surefoot_journal"] == 1
    kinds = [line["kind"] for line in lines[1:]]
    assert kinds == ["selection", "fault", "cleanup", "rung", "fault", "rung", "step", "note"]
    assert [line.get("recovery") for line in lines if line.get("kind") == "rung"] == ["reclaim", "split"]
    events = foot.events()
    assert events[-1]["context"]["note"] == "the first one is done"


def test_a_drill_comes_from_the_environment():
    code = "import surefoot; f = surefoot.Footing(device='cpu'); f.run(lambda: 1); print(f.last.rungs)"
    import os

    environment = {**os.environ, "SUREFOOT_DRILL": "out_of_memory"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "['reclaim']", done.stderr


def test_nothing_of_pytorch_is_patched():
    before = {name: value for name, value in vars(torch.Tensor).items()}
    hook = sys.excepthook
    surefoot.Footing(device="cpu").run(lambda: 1)
    assert vars(torch.Tensor) == before and sys.excepthook is hook


def test_other_threads_run_while_one_is_guarded():
    import threading

    foot = surefoot.Footing(device="cpu")
    results = []

    def work(at):
        results.append(foot.guard(lambda x: x + 1, split=0, name=f"thread {at}")(torch.full((2,), at)).tolist())

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(results) == [[at + 1, at + 1] for at in range(8)]


def test_room_on_a_gpu_is_what_the_budget_of_its_allocator_leaves(monkeypatch):
    import types

    from surefoot import _devices

    card = types.SimpleNamespace(
        mem_get_info=lambda device: (100, 140),
        memory_allocated=lambda device: 10,
        memory_reserved=lambda device: 20,
        get_per_process_memory_fraction=lambda device: 0.5,
    )
    monkeypatch.setattr(torch, "cuda", card)
    assert _devices.available("cuda") == 60
    card.get_per_process_memory_fraction = lambda device: 1.0
    assert _devices.available("cuda") == 110
