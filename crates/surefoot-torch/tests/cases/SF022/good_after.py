import torch

def run(model, x):
    out_of_memory = False
    try:
        return model(x)
    except torch.OutOfMemoryError:
        out_of_memory = True
    if out_of_memory:
        torch.cuda.empty_cache()
        return torch.cat([model(part) for part in x.split(8)])
