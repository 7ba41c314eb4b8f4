import torch

def fit(model, loader, optimizer, criterion, device, epochs):
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(epoch, total.item() / len(loader))
