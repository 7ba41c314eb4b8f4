import torch

def train(model, loader, optimizer, criterion, log):
    total = 0.0
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step % log == 0:
            loss = loss.item()
            total += loss
    return total
