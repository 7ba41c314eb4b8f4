import torch
from torch import nn

def train(loader, device):
    model = nn.Linear(3, 1).to(device)
    model = model.half()  # expect: SF020
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x.to(device).half()) - y.to(device).half()).pow(2).mean()
        loss.backward()
        optimizer.step()
