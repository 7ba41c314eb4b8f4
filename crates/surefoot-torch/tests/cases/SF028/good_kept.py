import torch

@torch.no_grad()
def path(steps, x):
    position = torch.zeros(1000, 1000)
    seen = []
    for _ in range(steps):
        seen.append(position)
        position = position + x
    return seen
