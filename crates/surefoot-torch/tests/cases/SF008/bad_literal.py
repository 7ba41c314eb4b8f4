import torch
from torch.utils.data import DataLoader

device = torch.device("mps")
loader = DataLoader([], num_workers=4)  # expect: SF008
