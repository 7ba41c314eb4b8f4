import torch
from torch import nn


def outputs(x):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(4, 2).to(device)
    model.eval()
    try:
        with torch.no_grad():
            return model(x.to(device))
    except RuntimeError:
        print("failed for", x.cpu().mean())
        raise
