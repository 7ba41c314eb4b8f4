import torch

def fits(model, x):
    try:
        model(x)
    except torch.OutOfMemoryError:
        return False
    return True
