import torch
from torch import mps

@torch.inference_mode()
def run(model, batches):
    model.eval()
    for x in batches:
        out = model(x)
        mps.empty_cache()  # expect: SF023
    return out
