import torch

def run(loader, device):
    for x, y in loader:
        x = x.to(device)
        y = y.to(device)
        yield x, y
