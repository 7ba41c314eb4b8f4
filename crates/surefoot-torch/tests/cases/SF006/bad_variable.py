import torch
import torch.nn as nn

device = "cuda"  # expect: SF006
model = nn.Linear(2, 2).to(device)
