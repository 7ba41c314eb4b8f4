import torch
from torch import nn

model = nn.Linear(3, 2)
x = torch.empty(4, 3)
y = model(x)  # expect: SF001
