import torch

def restore(model, path):
    model.load_state_dict(torch.load(path, weights_only=True))  # expect: SF024
    return model
