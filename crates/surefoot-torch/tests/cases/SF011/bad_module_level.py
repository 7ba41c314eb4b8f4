import torch
from torch import nn, optim

net = nn.Linear(4, 1)
opt = optim.Adam(net.parameters())
for epoch in range(10):
    for _ in range(100):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        opt.step()  # expect: SF011
