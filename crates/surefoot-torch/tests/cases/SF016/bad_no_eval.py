import torch

def accuracy(model, loader):
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum()  # expect: SF016
    return correct
