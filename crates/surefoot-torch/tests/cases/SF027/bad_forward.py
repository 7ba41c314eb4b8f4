import time
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(512, 512).to(device)
x = torch.randn(64, 512, device=device)
start = time.time()
y = model(x)
elapsed = time.time() - start  # expect: SF027
