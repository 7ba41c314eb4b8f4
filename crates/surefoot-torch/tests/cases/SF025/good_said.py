import torch

a = torch.load("a.pt", map_location="cpu", weights_only=True)
b = torch.load("b.pt", map_location="cpu", weights_only=False)
