import torch
from torch.utils.data import DataLoader

device = torch.device("mps" if torch.backends.mps.is_available() else "cuda" if torch.cuda.is_available() else "cpu")
if device.type == "cuda":
    loader = DataLoader([], pin_memory=True, num_workers=4)
else:
    loader = DataLoader([])
