import torch

def run(model, x):
    device = torch.device("mps")
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16):  # expect: SF018
        return model(x)
