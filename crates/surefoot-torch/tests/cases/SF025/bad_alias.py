import torch as t

def read(path, device):
    return t.load(path, map_location=device)  # expect: SF025
