import torch
from torch.utils.data import DataLoader

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
loader = DataLoader([], pin_memory=device.type == "cuda")
other = DataLoader([], pin_memory=torch.cuda.is_available())
