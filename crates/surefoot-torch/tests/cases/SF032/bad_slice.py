import torch
from torch import nn

device = torch.device("mps")
model = nn.Linear(32, 32).to(device)


@torch.no_grad()
def prefixes(x):
    model.eval()
    outputs = []
    for t in range(1, x.shape[1]):
        window = x[:, :t].to(device)
        outputs.append(model(window))  # expect: SF032
    for n in range(1, 100):
        outputs.append(model(torch.randn(n, 32, device=device)))  # expect: SF032
    return outputs
