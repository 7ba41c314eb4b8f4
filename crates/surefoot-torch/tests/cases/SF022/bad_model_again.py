import torch

def run(model, x):
    try:
        return model(x)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return model(x[:8])  # expect: SF022
