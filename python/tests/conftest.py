"""Fixtures: few threads, since test machines are small, and a cache folder of the tests' own."""

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def few_threads():
    torch.set_num_threads(2)
    torch.manual_seed(0)
    yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before
