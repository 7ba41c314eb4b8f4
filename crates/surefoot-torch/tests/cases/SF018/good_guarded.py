import torch
from torch import nn

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
model = nn.Linear(3, 3).to(device)
if device.type == "cuda":
    model = model.half()
