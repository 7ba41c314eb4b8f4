import torch

def train(model, loader, optimizer, criterion, device):
    model.train()
    preds = []
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x.to(device))
        loss = criterion(out, y.to(device))
        loss.backward()
        optimizer.step()
        preds.append(out.detach().cpu())  # expect: SF029
        hits = (out.argmax(1) == y.to(device)).sum().item()  # expect: SF029
    return preds, hits
