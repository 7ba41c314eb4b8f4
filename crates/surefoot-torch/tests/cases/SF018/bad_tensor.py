import torch

device = "mps" if torch.backends.mps.is_available() else "cpu"
x = torch.randn(3, device=device, dtype=torch.float16)  # expect: SF018
y = torch.randn(3).to(device).half()  # expect: SF018
