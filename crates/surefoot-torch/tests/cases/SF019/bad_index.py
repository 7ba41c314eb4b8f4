import torch

def run(model, x):
    with torch.autocast(device_type="cuda:0", dtype=torch.bfloat16):  # expect: SF019
        return model(x)
