import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x.to(self.device))


device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
net = Net(device).to(device)
out = net(torch.randn(3, 4))
