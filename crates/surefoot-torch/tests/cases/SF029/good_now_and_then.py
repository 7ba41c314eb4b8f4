import torch

def train(model, loader, optimizer, criterion, device, interval):
    model.train()
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if i % interval == 0:
            print(i, loss.item())
