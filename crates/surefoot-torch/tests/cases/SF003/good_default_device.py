import torch

torch.set_default_device("mps" if torch.backends.mps.is_available() else "cpu")
a = torch.randn(3, device="cpu")
b = torch.randn(3)
c = a + b
