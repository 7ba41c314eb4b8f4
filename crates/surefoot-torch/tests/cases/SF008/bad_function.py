import torch
from torch.utils import data

def main():
    device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    return device, data.DataLoader([], num_workers=2)  # expect: SF008
