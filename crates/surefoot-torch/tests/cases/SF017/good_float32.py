import numpy as np
import torch

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
x = torch.from_numpy(np.random.randn(3)).float().to(device)
y = torch.from_numpy(np.random.randn(3).astype(np.float32)).to(device)
z = torch.zeros(3, device=device).cpu().double()
