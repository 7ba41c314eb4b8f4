import torch
from torch import nn

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
net = nn.Linear(3, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(1000):
    opt.zero_grad()
    loss = net(torch.randn(8, 3, device=device)).mean()
    loss.backward()
    opt.step()
    print(step, loss.item())  # expect: SF029
