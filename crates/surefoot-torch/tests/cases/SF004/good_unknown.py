import torch

def place(thing, device):
    thing.to(device)
    torch.zeros(3).copy_(torch.ones(3))
    return thing
