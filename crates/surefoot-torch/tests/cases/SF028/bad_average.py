import torch

def update(ema, model, decay):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.data = e.data * decay + p.data * (1 - decay)  # expect: SF028
        p.grad = p.grad / 2  # expect: SF028
