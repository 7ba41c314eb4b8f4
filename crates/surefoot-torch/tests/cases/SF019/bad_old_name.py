import torch
from torch import nn
from torch.cuda.amp import autocast

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(3, 3)
model.to(device)

def run(x):
    with autocast():  # expect: SF019
        return model(x.to(device))
