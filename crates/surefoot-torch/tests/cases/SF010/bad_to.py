import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(3, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.to(device)  # expect: SF010
