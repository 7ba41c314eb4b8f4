import torch
from torch import nn

def build(device, fine):
    model = nn.Linear(3, 3)
    other = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    if fine:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        model.to(device)
    return optimizer
