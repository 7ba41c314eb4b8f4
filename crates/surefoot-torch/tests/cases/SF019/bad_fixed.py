import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(3, 3).to(device)
x = torch.randn(2, 3, device=device)
with torch.autocast("cuda"):  # expect: SF019
    y = model(x)
