import torch

def fit(net, loader, opt, loss_fn, scaler):
    running = 0.0
    sums = {"loss": 0.0}
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        running = running + loss  # expect: SF013
        sums["loss"] += loss / len(loader)  # expect: SF013
    return running, sums
