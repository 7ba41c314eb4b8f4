import torch

device = "mps" if torch.backends.mps.is_available() else "cpu"
x = torch.zeros(3, dtype=torch.float64, device=device)  # expect: SF017
y = torch.ones(3, dtype=torch.double).to(device)  # expect: SF017
