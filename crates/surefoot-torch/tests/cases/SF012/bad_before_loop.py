import torch
from torch import nn

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.zero_grad()  # expect: SF012
for _ in range(100):
    loss = model(torch.randn(2, 3)).mean()
    loss.backward()
    optimizer.step()
