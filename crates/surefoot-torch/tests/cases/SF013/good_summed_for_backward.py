import torch

def train(model, loader, optimizer, criterion):
    for batch in loader:
        optimizer.zero_grad()
        total = 0
        for x, y in batch:
            loss = criterion(model(x), y)
            total += loss
        total.backward()
        optimizer.step()
