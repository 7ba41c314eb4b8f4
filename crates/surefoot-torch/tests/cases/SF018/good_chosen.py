import torch
from torch import nn

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
model = nn.Linear(3, 3).to(device, dtype=dtype)
