import torch
from torch import nn

net = nn.Linear(3, 2)

def total(loader):
    result = 0
    for x, y in loader:
        out = net(x)
        result += out  # expect: SF014
    return result
