import torch
from torch.utils.data import DataLoader as DL

if torch.backends.mps.is_available():
    device = torch.device("mps")
elif torch.cuda.is_available():
    device = torch.device("cuda")
else:
    device = torch.device("cpu")
loader = DL([], pin_memory=True)  # expect: SF007
