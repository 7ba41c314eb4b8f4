from time import perf_counter
import torch

def bench(n, device):
    a = torch.randn(n, n, device=device)
    t0 = perf_counter()
    for _ in range(10):
        b = torch.matmul(a, a)
    t1 = perf_counter()
    return t1 - t0  # expect: SF027
