import torch
from torch import nn


class Pyramid(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        outs = []
        for layer in self.layers:
            x = layer(x)
            outs.append(self.head(x))
        return outs
