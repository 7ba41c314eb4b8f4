import torch
from torch.utils.data import DataLoader

device = torch.device("mps")
loader = DataLoader(range(10), batch_size=2, pin_memory=True)  # expect: SF007
