import torch

state = torch.load("model.pt", weights_only=True)  # expect: SF024
