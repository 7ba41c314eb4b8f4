import torch
from torch.utils.data import DataLoader

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
loader = DataLoader([], num_workers=0)
