import torch
from torch.amp import autocast

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")

def run(model, x):
    with autocast(device):  # expect: SF019
        return model(x)
