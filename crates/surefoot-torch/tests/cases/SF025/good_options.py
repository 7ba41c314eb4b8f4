import torch

def read(path, **options):
    return torch.load(path, map_location="cpu", **options)
