import torch
from torch import nn

model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(100):
    opt.zero_grad()
    loss = model(torch.randn(2, 3)).mean()
    history.append(loss)  # expect: SF013
    loss.backward()
    opt.step()
