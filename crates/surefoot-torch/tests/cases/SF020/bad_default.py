import torch
from torch.cuda.amp import autocast

def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with autocast():  # expect: SF020
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
