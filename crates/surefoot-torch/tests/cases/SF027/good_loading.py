import time
import torch

def load(path):
    start = time.time()
    data = torch.randn(10, 10)
    total = data @ data
    return total, time.time() - start

def fit(model, loader, optimizer, criterion, device, epochs):
    model = model.to(device)
    since = time.time()
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    print(f"trained in {time.time() - since:.0f} s")
