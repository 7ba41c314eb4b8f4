import torch

def fit(net, loader, opt, criterion, epochs):
    for epoch in range(epochs):
        opt.zero_grad()  # expect: SF012
        for x, y in loader:
            loss = criterion(net(x), y)
            loss.backward()
            opt.step()
