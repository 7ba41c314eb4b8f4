import torch

def run(model, x, device):
    try:
        return model(x.to(device))
    except RuntimeError as error:  # expect: SF021
        print("failed", error)
        return None
