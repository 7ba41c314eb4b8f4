import torch

def train_step(model, optimizer, x, y):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()  # expect: SF011
    return loss.detach()

def fit(model, optimizer, batches):
    for x, y in batches:
        train_step(model, optimizer, x, y)
