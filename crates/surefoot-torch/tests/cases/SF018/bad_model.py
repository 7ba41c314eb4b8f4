import torch
from torch import nn

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
model = nn.Linear(3, 3).to(device, dtype=torch.bfloat16)  # expect: SF018
