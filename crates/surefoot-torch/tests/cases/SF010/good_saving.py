import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(3, 3)
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.cpu()
torch.save(model.state_dict(), "model.pt")
model.to(device)
