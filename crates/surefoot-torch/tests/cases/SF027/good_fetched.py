import time
import torch

def epoch(model, loader, device, criterion):
    model.to(device)
    model.eval()
    start = time.time()
    with torch.no_grad():
        for x, y in loader:
            loss = criterion(model(x.to(device)), y.to(device)).item()
    print(time.time() - start, loss)
