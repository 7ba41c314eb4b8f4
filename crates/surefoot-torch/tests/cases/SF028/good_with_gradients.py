import torch

def forward(x, layers):
    h = torch.zeros(3)
    for layer in layers:
        h = h + layer(x)
        x = x * 2
    return h
