import torch
from torch import nn

device = torch.device("mps")
model = nn.Linear(32, 32).to(device)


@torch.no_grad()
def run(x, batch):
    model.eval()
    outputs = []
    for i in range(0, len(x), batch):
        outputs.append(model(x[i : i + batch].to(device)))
    for row in x:
        outputs.append(model(row.to(device)))
    for i in range(10):
        outputs.append(model(x[i].to(device)))
    for rows in x:
        outputs.append(model(rows[: rows.shape[0] // 2].to(device)))
    return outputs
