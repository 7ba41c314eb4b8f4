import torch

@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        yield model(x)

@torch.inference_mode()
def predict(model, x):
    model.eval()
    return model(x)
