import torch

def largest_batch(model, make, size):
    while size > 1:
        try:
            model(make(size))
            break
        except torch.OutOfMemoryError:
            size //= 2
    return size
