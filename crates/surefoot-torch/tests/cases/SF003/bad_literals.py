import torch

def mixed():
    a = torch.randn(3, device="cuda:0")
    b = torch.randn(3, device="cuda:1")
    c = torch.randn(3, device="mps")
    d = torch.randn(3)
    return a + b, c * d  # expect: SF003
