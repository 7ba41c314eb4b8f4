from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

device = torch.device("mps")
model = nn.Linear(3, 3).to(device)


def read(path):
    return torch.load(path, map_location="cpu", weights_only=True)


@torch.inference_mode()
def run(paths, dataset):
    model.eval()
    with ThreadPoolExecutor(8) as pool:
        tensors = list(pool.map(read, paths))
    rows = dataset.map(lambda x: model(x.to(device)))
    return [model(x.to(device)).cpu() for x in tensors], rows
