import torch
from torch import nn

model = nn.Linear(4, 2)
try:
    model.to("mps")
except Exception:
    model.to(torch.device("cpu"))  # expect: SF034
