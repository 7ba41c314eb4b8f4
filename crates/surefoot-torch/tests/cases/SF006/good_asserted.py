import torch

def kernel(x, device="cuda"):
    assert torch.cuda.is_available(), "needs CUDA"
    return x.cuda()

def bench(x):
    if not torch.cuda.is_available():
        raise RuntimeError("needs CUDA")
    return x.to("cuda")
