import torch

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
dtype = torch.float32 if device.type == "mps" else torch.float64
x = torch.zeros(3, dtype=dtype, device=device)
if device.type != "mps":
    x = x.double()
