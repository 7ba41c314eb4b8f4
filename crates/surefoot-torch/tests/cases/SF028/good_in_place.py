import torch

@torch.no_grad()
def update(ema, model, decay):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 1 - decay)

def mean(batches):
    total = torch.zeros(4096, 4096)
    for x in batches:
        total += x
    return total
