import torch
from torch.cuda import empty_cache

def bench(model, x, n):
    for _ in range(n):
        with torch.no_grad():
            model(x)
        empty_cache()  # expect: SF023
