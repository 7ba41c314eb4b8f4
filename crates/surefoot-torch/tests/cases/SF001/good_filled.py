import torch
from torch import nn

buffer = torch.empty(4, 3)
buffer.copy_(torch.ones(4, 3))
y = buffer * 2
noise = torch.empty(3).normal_()
z = noise + 1
rows = torch.empty(10, 3)
for i in range(10):
    rows[i] = torch.ones(3)
mean = rows.mean()
weight = torch.empty(3, 3)
nn.init.xavier_uniform_(weight)
out = weight @ weight
