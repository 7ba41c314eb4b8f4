import torch

device = "mps" if torch.backends.mps.is_built() else "cpu"  # expect: SF005
