import torch
from torch.nn import Linear

device = "mps" if torch.backends.mps.is_available() else "cpu"
layer = Linear(3, 3)
x = torch.randn(2, 3).to(device)
y = layer(x)  # expect: SF002
