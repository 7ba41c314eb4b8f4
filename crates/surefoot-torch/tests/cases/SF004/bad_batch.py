import torch
from torch.utils.data import DataLoader

def run(model, dataset, device):
    for x, y in DataLoader(dataset):
        x.to(device)  # expect: SF004
        y.to(device, non_blocking=True)  # expect: SF004
