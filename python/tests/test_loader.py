"""`loader` chooses its settings and survives workers that die."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import surefoot


class Deadly(Dataset):
    """Kills the worker that loads sample `bad`, at most `times` times."""

    def __init__(self, folder, bad, times):
        self.tally, self.bad, self.times = Path(folder) / "tally", bad, times
        self.home = os.getpid()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.bad and os.getpid() != self.home:
            with open(self.tally, "a") as file:
                file.write("x")
            if len(self.tally.read_text()) <= self.times:
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


def test_no_batch_is_lost_or_comes_twice_when_a_worker_dies(tmp_path):
    foot = surefoot.Footing(device="cpu")
    batches = surefoot.loader(Deadly(tmp_path, bad=5, times=1), batch_size=2, workers=2, footing=foot)
    with pytest.warns(surefoot.SurefootWarning, match="died by signal 9 before batch"):
        found = [batch.tolist() for batch in batches]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert batches.deaths == 1
    assert any(event.get("op") == "loader" or "loader" in str(event) for event in foot.events())


def test_a_sample_that_always_kills_its_worker_is_named_or_left_out(tmp_path):
    dataset = Deadly(tmp_path, bad=1, times=10**6)
    with pytest.warns(surefoot.SurefootWarning), pytest.raises(surefoot.Fault, match="sample 1 of the dataset kills") as raised:
        list(surefoot.loader(dataset, batch_size=6, workers=1))
    assert raised.value.kind == "data_loading"
    batches = surefoot.loader(dataset, batch_size=6, workers=1, skip_bad=True)
    with pytest.warns(surefoot.SurefootWarning, match="sample 1 kills the worker that loads it and is left out"):
        found = [batch.tolist() for batch in batches]
    assert found == [[0, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]] and batches.skipped == [1]


class Raises(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError(index)


def test_what_a_dataset_raises_is_not_a_death():
    with pytest.raises(KeyError):
        list(surefoot.loader(Raises(), batch_size=2, workers=0))
    with pytest.raises(KeyError):
        list(surefoot.loader(Raises(), batch_size=2, workers=1))


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor(index)


def test_workers_are_chosen_by_measurement():
    quick = surefoot.loader(TensorDataset(torch.arange(64)), batch_size=8)
    assert quick.workers == 0 and "too little for a process of its own" in quick.reason
    slow = surefoot.loader(Slow(), batch_size=16)
    assert slow.workers >= 1 and "ms to load" in slow.reason


def test_memory_is_pinned_for_cuda_and_never_for_metal():
    data = TensorDataset(torch.arange(4))
    pinned = {device: surefoot.loader(data, device=device).pinned for device in ("cpu", "cuda", "mps", "metal")}
    assert pinned == {"cpu": False, "cuda": True, "mps": False, "metal": False}


def test_shuffling_differs_between_epochs_and_is_repeated_with_the_same_generator():
    def epochs():
        batches = surefoot.loader(TensorDataset(torch.arange(32)), 8, shuffle=True, generator=torch.Generator().manual_seed(3))
        return [[x for (batch,) in batches for x in batch.tolist()] for _ in range(2)]

    first, second = epochs()
    assert sorted(first) == sorted(second) == list(range(32)) and first != second
    assert epochs() == [first, second]


def test_arguments_that_make_no_sense_are_refused():
    data = TensorDataset(torch.arange(4))
    with pytest.raises(TypeError, match="say workers= instead"):
        surefoot.loader(data, num_workers=3)
    with pytest.raises(TypeError, match="__len__ and __getitem__"):
        surefoot.loader(iter([1, 2]))
    with pytest.raises(ValueError, match="not both"):
        surefoot.loader(data, shuffle=True, sampler=[0, 1])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_an_iterable_dataset_is_loaded_as_usual():
    assert [batch.tolist() for batch in surefoot.loader(Stream(), batch_size=2)] == [[0, 1], [2, 3], [4]]
