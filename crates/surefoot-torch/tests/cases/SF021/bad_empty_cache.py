import gc
import torch

def train(model, loader, optimizer, criterion):
    for x, y in loader:
        try:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        except RuntimeError:  # expect: SF021
            torch.cuda.empty_cache()
            gc.collect()
            optimizer.zero_grad()
            continue

def run(model, x):
    try:
        return model(x)
    except RuntimeError:  # expect: SF021
        print("out of memory, skipping this batch")
        del x
        torch.mps.empty_cache()
