import torch

def run(model, train_loader, device):
    for i, (inputs, labels) in enumerate(train_loader):
        inputs.to(device)  # expect: SF004
        labels = labels.to(device)
