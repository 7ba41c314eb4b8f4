import torch

@torch.no_grad()
def mean(batches, n):
    total = torch.zeros(4096, 4096)
    for x in batches:
        total = total + x  # expect: SF028
    return total / n
