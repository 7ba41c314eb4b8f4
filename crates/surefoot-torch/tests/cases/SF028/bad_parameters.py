import torch

def sgd(model, lr):
    with torch.no_grad():
        for p in model.parameters():
            p.data = p.data - lr * p.grad  # expect: SF028
