import torch

def saliency(model, loader):
    model.eval()
    for x, y in loader:
        x.requires_grad_()
        score = model(x).max()
        score.backward()
        yield x.grad

def validate(model, loader):
    model.eval()
    return [model(x).argmax() for x in loader]

def run(model, loader):
    with torch.no_grad():
        return validate(model, loader)
