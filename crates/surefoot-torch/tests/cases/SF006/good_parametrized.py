import pytest
import torch
from helpers import RunIf


@pytest.mark.parametrize(
    "device",
    [
        torch.device("cpu"),
        pytest.param(torch.device("cuda"), marks=RunIf(min_cuda_gpus=1)),
    ],
)
def test_sum(device):
    assert torch.ones(3, device=device).sum() == 3
