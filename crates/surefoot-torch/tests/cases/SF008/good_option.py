import torch
from torch.utils.data import DataLoader

def main(args):
    device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    workers = 0 if device.type == "mps" else 4
    a = DataLoader([], num_workers=args.workers)
    b = DataLoader([], num_workers=workers)
    return a, b
