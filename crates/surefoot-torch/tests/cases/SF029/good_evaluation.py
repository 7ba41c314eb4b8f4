import torch

@torch.no_grad()
def test(model, loader, criterion, device):
    model.eval()
    loss, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss += criterion(out, y).item()
        correct += (out.argmax(1) == y).sum().item()
    return loss / len(loader), correct
