import torch

def check(model, loader, device):
    model.eval()
    correct = 0
    for x, y in loader:
        pred = model(x.to(device)).argmax(1)  # expect: SF015
        correct += (pred == y.to(device)).sum()
    return correct
