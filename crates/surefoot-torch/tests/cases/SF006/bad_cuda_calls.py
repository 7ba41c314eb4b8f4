import torch
from torch import nn

model = nn.Linear(3, 3).cuda()  # expect: SF006
x = torch.randn(2, 3).cuda(non_blocking=True)  # expect: SF006
y = model(x)
