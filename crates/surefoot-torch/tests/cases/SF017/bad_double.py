import torch
from torch import nn

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
model = nn.Linear(3, 3).to(device)
model = model.double()  # expect: SF017
x = torch.randn(2, 3, device=device).double()  # expect: SF017
torch.set_default_dtype(torch.float64)  # expect: SF017
