import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(3, 3).to(device)
x = torch.randn(2, 3, device=device)
with torch.autocast("cuda", enabled=device == "cuda"):
    y = model(x)
with torch.autocast(device):
    y = model(x)
