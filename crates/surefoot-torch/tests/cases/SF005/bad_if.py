import torch

def pick():
    if torch.backends.cuda.is_built():  # expect: SF005
        return torch.device("cuda")
    return torch.device("cpu")
