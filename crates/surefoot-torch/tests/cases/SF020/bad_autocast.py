import torch

def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):  # expect: SF020
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
