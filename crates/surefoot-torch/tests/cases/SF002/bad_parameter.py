import torch
from torch import nn as nn

def forward(model: nn.Module, device: torch.device):
    model.to(device)
    x = torch.randn(2, 3)
    return model(x)  # expect: SF002
