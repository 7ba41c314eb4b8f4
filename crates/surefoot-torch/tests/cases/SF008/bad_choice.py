import torch
from torch.utils.data import DataLoader

device = "mps" if torch.backends.mps.is_available() else "cpu"
workers = 8
loader = DataLoader([], batch_size=4, num_workers=workers)  # expect: SF008
