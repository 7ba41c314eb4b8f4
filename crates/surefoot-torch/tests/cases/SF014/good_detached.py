import torch

def train(model, loader, optimizer, criterion):
    outs = []
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        outs.append(out.detach())
    return torch.cat(outs)
