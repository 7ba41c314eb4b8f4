import torch

def train(model, loader, optimizer, criterion, device):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()  # expect: SF029
    return total
