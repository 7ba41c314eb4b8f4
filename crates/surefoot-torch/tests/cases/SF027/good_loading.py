import time
import torch

def load(path):
    start = time.time()
    data = torch.randn(10, 10)
    total = data @ data
    return total, time.time() - start
